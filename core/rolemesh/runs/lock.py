"""Who lives in a run's folder: a lock beside it that the job's processes hold, so that no answer has to be waited for.

``<runs>/.<name>.alive`` is locked, shared, by whoever keeps the job alive: on the local backend by the supervisor, on
Ray by the master's and the agents' processes. The kernel lets go of it when they are gone, however they go. Who wants
the folder must get it exclusively. Some shared file systems know no locks, or none between machines.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

__all__ = ["RunLock", "UnlockableError", "hold", "is_held", "lock_file"]

_UNKNOWN = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_BUSY = (errno.EAGAIN, errno.EACCES)
_LOOK_S = 0.01
PROBE_S = 1.0
"""Somebody may be looking whether the lock is held, and holds it himself for a moment."""


class UnlockableError(OSError):
    """The file system knows no locks."""


class RunLock:
    """The lock that the file at `path` is; held until `close`, and by every process that inherits `fd`."""

    def __init__(self, path: Path) -> None:
        """Open the file, and hold nothing yet. Raises `OSError`."""
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)

    def claim(self, timeout_s: float = PROBE_S) -> bool:
        """Hold it alone; whether that was possible within `timeout_s`. Raises `UnlockableError`."""
        return self._take(fcntl.LOCK_EX, timeout_s)

    def share(self, timeout_s: float = PROBE_S) -> bool:
        """Hold it with others of the same job; False if somebody claims it. Raises `UnlockableError`."""
        return self._take(fcntl.LOCK_SH, timeout_s)

    def close(self) -> None:
        """Let go, unless another process has inherited it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _take(self, kind: int, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not _try(self.fd, kind):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_S)
        return True


def hold(run_dir: Path) -> RunLock | None:
    """Hold the lock together with the job's other processes, as long as this one lives.

    None where that is not possible: no locks here, or the run's folder is not on this machine.
    """
    try:
        lock = RunLock(lock_file(run_dir))
    except OSError:
        return None
    try:
        if lock.share():
            return lock
    except OSError:
        pass
    lock.close()
    return None


def is_held(run_dir: Path) -> bool:
    """Whether a process of the run's job lives. False also where locks do not work, or the file cannot be read."""
    try:
        fd = os.open(lock_file(run_dir), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return not _try(fd, fcntl.LOCK_EX)
    except OSError:
        return False
    finally:
        os.close(fd)


def _try(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        if error.errno in _UNKNOWN:
            raise UnlockableError(error.errno, os.strerror(error.errno)) from error
        raise
    return True


def lock_file(run_dir: Path) -> Path:
    """Beside the folder, which may be moved or removed while its job lives."""
    folder = Path(os.path.realpath(run_dir))
    return folder.parent / f".{folder.name}.alive"
