"""The beginning of a job's process: its title, its limits on resources, and its parent, with which it dies."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal

# Tools find a job's processes by their environment variables, so the title must not overwrite them.
os.environ.setdefault("SPT_NOENV", "1")

from setproctitle import setproctitle

__all__ = ["die_with_parent", "entitle", "raise_limits"]

PR_SET_PDEATHSIG = 1
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


def entitle(job: str, what: str) -> None:
    """Set this process's title to `what` of `job`: ``rolemesh: grpo trainer/0``. The command line limits its length."""
    setproctitle(f"rolemesh: {job} {what}")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends (Linux). Exit at once if it has already ended."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
