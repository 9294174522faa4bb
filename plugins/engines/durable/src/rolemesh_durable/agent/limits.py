"""What a process of a job may use, raised once at its start; its children inherit it."""

from __future__ import annotations

import contextlib
import resource

__all__ = ["raise_limits"]

ENOUGH = 1 << 20
"""Some systems allow a thousand times more, and some programs then close them all, one by one."""


def raise_limits() -> None:
    """Let this process open as many files as it is allowed to: sockets and shared memory are files, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
