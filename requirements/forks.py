"""Runs functions in forked processes, as many at once as there are cores, and returns what the failed ones printed."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence

__all__ = ["failures"]


def failures(jobs: Sequence[tuple[str, Callable[[], None]]], logs: str) -> Iterator[tuple[str, str]]:
    """Runs each job in a process of its own, and yields the name of each that fails with all that it printed.

    Args:
        jobs: a name and a function each. The function's exception is a failure.
        logs: an existing folder, which holds the output of each job until the job ends.
    """
    waiting = list(enumerate(jobs))
    running: dict[int, tuple[str, str]] = {}
    while waiting or running:
        if waiting and len(running) < (os.cpu_count() or 1):
            number, (name, job) = waiting.pop(0)
            log = os.path.join(logs, f"{number}.log")
            running[_fork(job, log)] = name, log
            continue
        pid, status = os.wait()
        name, log = running.pop(pid)
        if status:
            with open(log, encoding="utf-8", errors="replace") as file:
                yield name, file.read()
        os.unlink(log)


def _fork(job: Callable[[], None], log: str) -> int:
    """Starts `job` in a new process that writes to `log`, and returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        job()
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
