"""Explain errors of the system during the start of a rank, with remedies."""

from __future__ import annotations

import errno
import os

from rolemesh.errors import BackendError, RolemeshError

__all__ = ["refused"]

_REMEDIES = {
    errno.ENOSPC: "give /dev/shm more room (docker --shm-size), or the disk with the run's folder",
    errno.EDQUOT: "give this user more room on /dev/shm, or on the disk with the run's folder",
    errno.EMFILE: "raise the number of files that a process may open (ulimit -n)",
    errno.ENFILE: "raise the number of files that this machine may open (sysctl fs.file-max)",
    errno.EAGAIN: "raise the number of processes (ulimit -u; pids.max of the container)",
    errno.ENOMEM: "this machine, or its container, is out of memory: give it more, or place fewer ranks here",
}


def refused(error: Exception) -> str:
    """Return the message for a rank whose start failed with `error`, an `OSError` or another error with an
    ``errno``."""
    if isinstance(error, RolemeshError):
        return str(error)
    code = getattr(error, "errno", None)
    why = os.strerror(code) if code else str(error)
    where = getattr(error, "filename", None)
    remedy = _REMEDIES.get(code or 0, "look at this node: its disks, its memory, its limits")
    what = f"the system refuses what the start of a rank needs: {why}"
    return str(BackendError(what, where=str(where) if where else None, remedy=remedy))
