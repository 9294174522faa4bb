"""Claim a run's folder for a new run. One job of a name runs at a time, and the output of an
earlier run is kept.

Only folders that rolemesh made are ever moved. A file or folder of another origin stays, and a run
of the same name is refused.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

import msgspec

from rolemesh.errors import NameInUseError
from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh.runs.run import CONTROL_FILE, LOGS_DIR, RESULT_FILE, RUN_FILE, RUNS_ENV
from rolemesh_runtime.lock import PROBE_S, RunLock, UnlockableError, lock_file, unwritable
from rolemesh_runtime.run_files import content_in

MARK_FILE = ".rolemesh"
"""Name of the empty file in each run's folder that marks it as made by rolemesh."""
ENDING_S = 30.0
"""Maximum time in seconds until the processes of a job that has its result are gone."""


@contextmanager
def claim(run_dir: Path) -> Iterator[Path | None]:
    """Hold the name of `run_dir` while a job runs in this process; the folder is new (see `fresh`).

    Yields the place of an earlier run, if there was one. Raises `NameInUseError` if a job runs in
    the folder or it is not a run's folder, and `BackendError` if it cannot be written.
    """
    with RunLock(lock_file(run_dir)) as held:
        with suppress(UnlockableError):
            if not held.claim(ENDING_S if (run_dir / RESULT_FILE).exists() else PROBE_S):
                raise in_use(run_dir, f"is running (pid {speaker(run_dir)})")
        yield fresh(run_dir)


def is_run(path: Path) -> bool:
    """Return whether rolemesh made the folder: it has the mark, or a ``run.json`` that names its
    owner."""
    return os.path.isfile(path / MARK_FILE) or "run_dir" in _said(path / RUN_FILE)


def fresh(run_dir: Path) -> Path | None:
    """Make the folder. An earlier run moves to ``<runs>/.earlier/<name>-<time>/``, which is
    returned.

    Raises `NameInUseError` for a folder that is not a run's; it stays.
    """
    if os.path.lexists(run_dir) and not is_run(run_dir):
        what = f"{run_dir.name!r} exists and was not made by rolemesh, so it stays as it is"
        raise NameInUseError(what, where=str(run_dir), remedy=f"choose another runs folder: --runs-dir or {RUNS_ENV}")
    try:
        earlier = _set_aside(run_dir) if run_dir.exists() else None
        run_dir.mkdir(mode=0o755)  # whatever the umask: only then its job file is this user's word
        (run_dir / MARK_FILE).touch()
        (run_dir / LOGS_DIR).mkdir()
    except OSError as error:
        raise unwritable(run_dir, error) from error
    return earlier


def _set_aside(run_dir: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%SZ", time.gmtime(run_dir.stat().st_mtime))
    earlier = run_dir.parent / ".earlier"
    earlier.mkdir(exist_ok=True)
    names = chain([stamp], (f"{stamp}-{number}" for number in count(2)))
    free = (target for name in names if not (target := earlier / f"{run_dir.name}-{name}").exists())
    return run_dir.rename(next(free))


def in_use(run_dir: Path, how: str) -> NameInUseError:
    """Return the error for a folder whose job is running; `how` says what it does."""
    remedy = f"choose another name (name=…), or end it: rolemesh stop {run_dir.name}"
    return NameInUseError(f"a job named {run_dir.name!r} {how}", where=str(run_dir), remedy=remedy)


def speaker(run_dir: Path) -> str:
    """Return the pid of the process that represents the job, "?" if unknown."""
    return str(_said(run_dir / CONTROL_FILE).get("pid", "?"))


def _said(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file; empty if it cannot be read."""
    try:
        return msgspec.json.decode(content_in(path.parent, path.name), type=dict[str, Any])
    except (OSError, *UNDECODABLE):
        return {}
