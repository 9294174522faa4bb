"""Fork a process that shares only memory with its parent, and describe how a process ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from rolemesh_processes.beginning import die_with_parent
from rolemesh_processes.output import write_to

__all__ = ["fork", "how_it_ended"]


def fork(run: Callable[[], int], log: Path, keep: int = -1) -> int:
    """Run `run` in a new process, which exits with the returned code. Return the pid.

    The process has a session of its own, and writes its output to `log`. It keeps no file of its parent except `keep`,
    and ends when the parent ends. Call this from a parent's only thread. Raises `OSError` if the machine has no room
    for a process.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with_parent(parent)
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _keep_only(keep)
        with contextlib.suppress(OSError):  # no room for a log is no reason not to run
            write_to(log)
        code = run()
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        # Whatever happens here, a child must never go on with its parent's work.
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def how_it_ended(status: int) -> str:
    """Return the status of ``waitpid`` in words."""
    if os.WIFSIGNALED(status):
        return f"was killed by signal {os.WTERMSIG(status)}"
    return f"ended with exit code {os.waitstatus_to_exitcode(status)}"


def _keep_only(keep: int) -> None:
    """Close the files of the parent. A pipe to the parent's janitor, above all, must close when the parent dies."""
    for fd in sorted(int(name) for name in os.listdir("/proc/self/fd")):
        if fd > 2 and fd != keep:
            with contextlib.suppress(OSError):
                os.close(fd)
