"""OpenMP and fork: a process that has computed with several threads ends them before it forks."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

__all__ = ["end_threads"]

PAUSE_HARD = 2
"""``omp_pause_hard``, OpenMP 5.0: the runtime gives up what it holds, threads included, and makes them when needed."""


def end_threads() -> None:
    """End the threads that GNU's OpenMP (libgomp, which torch brings) keeps for this thread's parallel regions.

    A fork copies the calling thread alone, but also libgomp's note of the others: the child's first parallel region
    with several threads would wait for them for ever. Intel's and LLVM's runtimes see to that themselves. To be called
    outside of parallel regions, by the thread that forks; the next region has threads again.
    """
    maps = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    for path in {line.split(maxsplit=5)[5] for line in maps if "libgomp" in line}:
        with suppress(OSError, AttributeError):  # it has been deleted, or is older than OpenMP 5.0 (GCC 9)
            ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_NOW).omp_pause_resource_all(PAUSE_HARD)
