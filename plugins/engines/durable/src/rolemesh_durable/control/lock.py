"""The lock of a run's folder, which the job's processes hold. It shows whether the job is running, without waiting for
an answer.

The processes that keep the job alive hold a shared lock on ``<runs>/.<name>.alive``: on the local backend the
supervisor, on Ray the master's and the agents' processes. The operating system releases it when they end in any way. A
process that wants the folder must get the lock exclusively.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from rolemesh.errors import BackendError
from rolemesh_runtime.claim import PROBE_S, lock, lock_file, open_lock

__all__ = ["RunLock", "hold", "is_held"]


class RunLock:
    """The lock on the file at `path`. It is held until `close`, and by every process that inherits `fd`."""

    def __init__(self, path: Path) -> None:
        """Open the file without locking it. Raises `BackendError`."""
        self.fd = open_lock(path)

    def claim(self, timeout_s: float = PROBE_S) -> bool:
        """Try to lock it exclusively within `timeout_s`; return whether that succeeded. Raises `UnlockableError`."""
        return lock(self.fd, fcntl.LOCK_EX, timeout_s)

    def share(self, timeout_s: float = PROBE_S) -> bool:
        """Share the lock with others of the same job. Return False if another process claims it. Raises
        `UnlockableError`."""
        return lock(self.fd, fcntl.LOCK_SH, timeout_s)

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
        return not lock(fd, fcntl.LOCK_EX, 0)
    except OSError:
        return False
    finally:
        os.close(fd)
