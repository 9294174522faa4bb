"""The lock of a run's folder, which the job's processes hold. It shows whether the job is running, without waiting for
an answer.

The processes that keep the job alive hold a shared lock on ``<runs>/.<name>.alive``: for the engine `inline` its
process, for `durable` the supervisor of the local backend, or the processes of master and agents on Ray. The operating
system releases it when they end in any way. A process that wants the folder must get the lock exclusively. Some shared
file systems have no locks, or none between machines.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

from rolemesh.errors import BackendError
from rolemesh.runs.run import RUNS_ENV

__all__ = ["PROBE_S", "RunLock", "UnlockableError", "hold", "is_held", "lock_file", "unwritable"]

_UNKNOWN = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_LOOK_S = 0.01
PROBE_S = 1.0
"""Seconds to wait for the lock, because another process may hold it briefly to test it."""


class UnlockableError(OSError):
    """The file system does not support locks."""


def lock_file(run_dir: Path) -> Path:
    """Return the path of the lock. It is beside the folder, which may be moved or removed while its
    job runs."""
    folder = Path(os.path.realpath(run_dir))
    return folder.parent / f".{folder.name}.alive"


class RunLock:
    """The lock on the file at `path`. It is held until `close`, and by every process that inherits `fd`."""

    def __init__(self, path: Path) -> None:
        """Open the file without locking it. Raises `BackendError`."""
        self.fd = _open(path)

    def claim(self, timeout_s: float = PROBE_S) -> bool:
        """Try to lock it exclusively within `timeout_s`; return whether that succeeded. Raises `UnlockableError`."""
        return _lock(self.fd, fcntl.LOCK_EX, timeout_s)

    def share(self, timeout_s: float = PROBE_S) -> bool:
        """Share the lock with others of the same job. Return False if another process claims it. Raises
        `UnlockableError`."""
        return _lock(self.fd, fcntl.LOCK_SH, timeout_s)

    def close(self) -> None:
        """Release the lock, unless another process has inherited it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def hold(run_dir: Path) -> RunLock | None:
    """Hold the lock together with the job's other processes, as long as this one lives.

    Returns None if that is impossible: there are no locks here, or the run's folder is not on this machine.
    """
    if not run_dir.parent.is_dir():
        return None
    try:
        held = RunLock(lock_file(run_dir))
    except BackendError:
        return None
    try:
        if held.share():
            return held
    except OSError:
        pass
    held.close()
    return None


def is_held(run_dir: Path) -> bool:
    """Return whether a process of the run's job is alive. False also if locks do not work, or the file cannot be
    read."""
    try:
        fd = os.open(lock_file(run_dir), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return not _lock(fd, fcntl.LOCK_EX, 0)
    except OSError:
        return False
    finally:
        os.close(fd)


def unwritable(path: Path, error: OSError) -> BackendError:
    """Return the error for a runs folder that cannot be written."""
    what = f"the run's folder cannot be made: {error.strerror}"
    remedy = f"choose another place with --runs-dir or {RUNS_ENV}"
    return BackendError(what, where=str(path), remedy=remedy)


def _open(path: Path) -> int:
    """Open the lock file without locking it, and return the descriptor. Raises `BackendError` if
    its folder cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise unwritable(path if os.path.lexists(path) else path.parent, error) from error


def _lock(fd: int, kind: int, timeout_s: float = PROBE_S) -> bool:
    """Try to take the lock and return whether that succeeded in time; `kind` is that of
    `fcntl.flock`. Raises `UnlockableError`."""
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
