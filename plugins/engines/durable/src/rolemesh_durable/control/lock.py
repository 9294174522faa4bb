"""Who lives in a run's folder: a lock beside it that the job's processes hold, so that no answer has to be waited for.

``<runs>/.<name>.alive`` is locked, shared, by whoever keeps the job alive: on the local backend by the supervisor, on
Ray by the master's and the agents' processes. The system lets go of it when they are gone, however they go. Who wants
the folder must get it exclusively.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from rolemesh.errors import BackendError
from rolemesh.runs.claim import PROBE_S, lock, lock_file, open_lock

__all__ = ["RunLock", "hold", "is_held"]


class RunLock:
    """The lock that the file at `path` is; held until `close`, and by every process that inherits `fd`."""

    def __init__(self, path: Path) -> None:
        """Open the file, and hold nothing yet. Raises `BackendError`."""
        self.fd = open_lock(path)

    def claim(self, timeout_s: float = PROBE_S) -> bool:
        """Hold it alone; whether that was possible within `timeout_s`. Raises `UnlockableError`."""
        return lock(self.fd, fcntl.LOCK_EX, timeout_s)

    def share(self, timeout_s: float = PROBE_S) -> bool:
        """Hold it with others of the same job; False if somebody claims it. Raises `UnlockableError`."""
        return lock(self.fd, fcntl.LOCK_SH, timeout_s)

    def close(self) -> None:
        """Let go, unless another process has inherited it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def hold(run_dir: Path) -> RunLock | None:
    """Hold the lock together with the job's other processes, as long as this one lives.

    None where that is not possible: no locks here, or the run's folder is not on this machine.
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
    """Whether a process of the run's job lives. False also where locks do not work, or the file cannot be read."""
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
