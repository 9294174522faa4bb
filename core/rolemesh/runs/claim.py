"""Taking a run's folder for a new run: one job of a name at a time, and nothing of an earlier run
is lost.

Only what rolemesh made is ever moved. A file or folder of somebody else stays, and keeps its name
from a run.

Who lives in a folder holds a lock beside it, ``<runs>/.<name>.alive``, which the system lets go of
when he is gone, however he goes. Some shared file systems know no locks, or none between machines.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

import msgspec

from rolemesh.errors import BackendError, NameInUseError
from rolemesh.runs.jsonl import open_regular
from rolemesh.runs.run import CONTROL_FILE, LOGS_DIR, RESULT_FILE, RUN_FILE, RUNS_ENV

MARK_FILE = ".rolemesh"
"""An empty file in each run's folder. It says that rolemesh made the folder."""
_UNKNOWN = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_LOOK_S = 0.01
PROBE_S = 1.0
"""Somebody may be looking whether the lock is held, and holds it himself for a moment."""
ENDING_S = 30.0
"""How long the processes of a job that has its result may take to leave."""


class UnlockableError(OSError):
    """The file system knows no locks."""


@contextmanager
def claim(run_dir: Path) -> Iterator[Path | None]:
    """Hold the name of `run_dir` while a job runs in this process; the folder is `fresh` then.

    Gives the place of an earlier run, if there was one. Raises `NameInUseError` if a job lives
    there, or if it is no run, and `BackendError` if the folder cannot be written.
    """
    with open(open_lock(lock_file(run_dir)), "rb") as held:
        with suppress(UnlockableError):
            if not lock(
                held.fileno(),
                fcntl.LOCK_EX,
                ENDING_S if (run_dir / RESULT_FILE).exists() else PROBE_S,
            ):
                raise in_use(run_dir, f"is running (pid {speaker(run_dir)})")
        yield fresh(run_dir)


def is_run(path: Path) -> bool:
    """Whether rolemesh made the folder: it has the mark, or a ``run.json`` that says whose folder
    it is."""
    return os.path.isfile(path / MARK_FILE) or "run_dir" in _said(path / RUN_FILE)


def fresh(run_dir: Path) -> Path | None:
    """Make the folder; an earlier run moves to ``<runs>/.earlier/<name>-<time>/``, which is
    returned.

    Raises `NameInUseError` for what is no run: that stays.
    """
    if os.path.lexists(run_dir) and not is_run(run_dir):
        what = f"{run_dir.name!r} exists and was not made by rolemesh, so it stays as it is"
        raise NameInUseError(
            what, where=str(run_dir), remedy=f"choose another runs folder: --runs-dir or {RUNS_ENV}"
        )
    try:
        earlier = _set_aside(run_dir) if run_dir.exists() else None
        run_dir.mkdir(mode=0o755)  # whatever the umask: only then its job file is this user's word
        (run_dir / MARK_FILE).touch()
        (run_dir / LOGS_DIR).mkdir()
    except OSError as error:
        raise _unwritable(run_dir, error) from error
    return earlier


def _set_aside(run_dir: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(run_dir.stat().st_mtime))
    earlier = run_dir.parent / ".earlier"
    earlier.mkdir(exist_ok=True)
    names = chain([stamp], (f"{stamp}-{number}" for number in count(2)))
    free = (target for name in names if not (target := earlier / f"{run_dir.name}-{name}").exists())
    return run_dir.rename(next(free))


def in_use(run_dir: Path, how: str) -> NameInUseError:
    """A job there lives; `how` says what it does."""
    remedy = f"choose another name (name=…), or end it: rolemesh stop {run_dir.name}"
    return NameInUseError(f"a job named {run_dir.name!r} {how}", where=str(run_dir), remedy=remedy)


def speaker(run_dir: Path) -> str:
    """The pid of the process that speaks for the job there, "?" if none has said so."""
    return str(_said(run_dir / CONTROL_FILE).get("pid", "?"))


def _said(path: Path) -> dict[str, Any]:
    """What a JSON file has; nothing if it cannot be read."""
    try:
        with open_regular(path) as file:
            return msgspec.json.decode(file.read(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError):
        return {}


def lock_file(run_dir: Path) -> Path:
    """Beside the folder, which may be moved or removed while its job lives."""
    folder = Path(os.path.realpath(run_dir))
    return folder.parent / f".{folder.name}.alive"


def open_lock(path: Path) -> int:
    """The descriptor of a lock that nobody holds yet. Raises `BackendError` where its folder cannot
    be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise _unwritable(path.parent, error) from error


def lock(fd: int, kind: int, timeout_s: float = PROBE_S) -> bool:
    """Take the lock, `kind` as of `fcntl.flock`; whether that was possible in time. Raises
    `UnlockableError`."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return True
        except (BlockingIOError, PermissionError):  # which of the two, the file system decides
            if time.monotonic() >= deadline:
                return False
        except OSError as error:
            if error.errno in _UNKNOWN:
                raise UnlockableError(error.errno, os.strerror(error.errno)) from error
            raise
        time.sleep(_LOOK_S)


def _unwritable(path: Path, error: OSError) -> BackendError:
    what = f"the run's folder cannot be made: {error.strerror}"
    remedy = f"choose another place with --runs-dir or {RUNS_ENV}"
    return BackendError(what, where=str(path), remedy=remedy)
