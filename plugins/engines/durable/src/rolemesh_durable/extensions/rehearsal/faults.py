"""Faults that a rehearsal injects into one of the job's processes for a while. The machine itself is not touched.

A full disk is emulated by the kernel's limit on the size of files (``RLIMIT_FSIZE``), which belongs to a process: every
write that would grow a file fails in it, on disks and in shared memory alike, with EFBIG instead of ENOSPC. A real disk
is never filled.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

__all__ = ["CLOCK_STEP_S", "LASTING_S", "fill", "step_clock"]

LASTING_S = 3.0
"""Seconds for which files cannot grow, or a store does not answer."""
CLOCK_STEP_S = 3600.0

_clock = time.time
_offset = 0.0


def fill(pids: Iterable[int]) -> None:
    """Let no file of these processes grow for `LASTING_S` seconds. Returns at once.

    Processes that they start meanwhile inherit the limit, until their next life. A process that has ended is left out.
    """
    before: list[tuple[int, tuple[int, int]]] = []
    for pid in filter(None, pids):
        with suppress(ProcessLookupError, PermissionError):
            limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, limits[1]))
            before.append((pid, limits))

    def empty() -> None:
        for pid, limits in before:
            with suppress(ProcessLookupError, PermissionError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)

    timer = threading.Timer(LASTING_S, empty)
    timer.daemon = True
    timer.start()


def step_clock() -> None:
    """Move the wall clock that this process sees by an hour: forward, and back with the next call."""
    global _offset
    _offset = CLOCK_STEP_S - _offset
    time.time = _stepped


def _stepped() -> float:
    return _clock() + _offset
