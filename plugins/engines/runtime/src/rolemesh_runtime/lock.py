"""The lock of a run's folder, which the job's processes hold. It shows whether the job is running, without waiting for
an answer.

The processes that keep the job alive hold a shared lock on ``<runs>/.<name>.alive``: for the engine `inline` its
process, for `durable` the supervisor of the local backend, or the processes of master and agents on Ray. The operating
system releases it when they end in any way. A process that wants the folder must get the lock exclusively. Some shared
file systems have no locks, or none between machines. Only the run's user may open the file: a lock that another user
takes would keep jobs from starting.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from rolemesh.errors import BackendError
from rolemesh.runs.run import RUNS_ENV

__all__ = ["PROBE_S", "RunLock", "UnlockableError", "hold", "is_held", "is_locked", "lock_file", "unwritable"]

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
    """Return whether a process of the run's job is alive. False also if locks do not work. For another user's run, the
    kernel's list of locks says it, of this machine."""
    return is_locked(lock_file(run_dir))


def is_locked(path: Path) -> bool:
    """Return whether a process has locked the file; see `is_held`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:
        return _is_listed(path)
    except OSError:
        return False
    try:
        return not _lock(fd, fcntl.LOCK_EX, 0)
    except OSError:
        return False
    finally:
        os.close(fd)


def _is_listed(path: Path) -> bool:
    """Return whether the kernel lists a lock on the file. Its list has inodes, and devices that `os.stat` may call
    otherwise."""
    try:
        inode = str(path.stat(follow_symlinks=False).st_ino)
        listed = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return False
    return any("FLOCK" in fields and fields[-3].rpartition(":")[2] == inode for fields in map(str.split, listed))


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
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with suppress(PermissionError):  # an older rolemesh let others read it; root may hold another user's
            os.fchmod(fd, 0o600)
        return fd
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
