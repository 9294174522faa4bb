"""OpenMP and fork: a process that has computed with several threads ends them before it forks."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

__all__ = ["BASE_ENV", "end_threads"]

BASE_ENV = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "PYTHONUNBUFFERED": "1",
}
"""Variables of every rank. Processes with spinning OpenMP threads on the same cores slow each other three to four
times."""
PAUSE_HARD = 2
"""``omp_pause_hard`` of OpenMP 5.0: the runtime releases its resources, threads included, and recreates them when
needed."""


def end_threads() -> None:
    """End the threads that GNU's OpenMP (libgomp, which torch brings) keeps for this thread's parallel regions.

    A fork copies only the calling thread, but also libgomp's record of the others: the child's first parallel region
    with several threads would wait for them for ever. Intel's and LLVM's runtimes handle that themselves. Call this
    outside of parallel regions, from the thread that forks; the next region has threads again.
    """
    maps = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    for path in {line.split(maxsplit=5)[5] for line in maps if "libgomp" in line}:
        with suppress(OSError, AttributeError):  # it has been deleted, or is older than OpenMP 5.0 (GCC 9)
            ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_NOW).omp_pause_resource_all(PAUSE_HARD)
