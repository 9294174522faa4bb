"""Faults that a rehearsal puts into one of our own processes for a while: nothing of the machine itself is touched.

A disk that is full is emulated by the kernel's limit on the size of files (``RLIMIT_FSIZE``), which belongs to a
process: every write that makes a file longer fails in it, on disks and in shared memory alike, with EFBIG in the place
of ENOSPC. A foreign machine's disk is never filled.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

__all__ = ["CLOCK_STEP_S", "LASTING_S", "fill", "step_clock"]

LASTING_S = 3.0
"""How long files cannot grow, and a store does not answer."""
CLOCK_STEP_S = 3600.0

_clock = time.time
_offset = 0.0


def fill(pids: Iterable[int]) -> None:
    """Let no file of these processes, which are ours, grow for `LASTING_S`; returns at once.

    What they start meanwhile inherits it, and gets it back with its next life. A process that has ended is left out.
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
    """Step the wall clock that this process sees by an hour: forward, and back with the next call."""
    global _offset
    _offset = CLOCK_STEP_S - _offset
    time.time = _stepped


def _stepped() -> float:
    return _clock() + _offset
