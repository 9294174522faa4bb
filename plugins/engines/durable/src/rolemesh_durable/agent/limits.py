"""Raise the resource limits of a job's process once at its start. Its children inherit them."""

from __future__ import annotations

import contextlib
import resource

__all__ = ["raise_limits"]

ENOUGH = 1 << 20
"""Maximum number of open files to set. Some systems allow a thousand times more, and some programs then close all of
them one by one."""


def raise_limits() -> None:
    """Let this process open as many files as the hard limit allows; sockets and shared memory count as files, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
