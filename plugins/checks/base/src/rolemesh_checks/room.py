"""The free space of a node, and the speed of its disk."""

from __future__ import annotations

import os
import shutil
import tempfile
import time

from pydantic import Field

from rolemesh_durable.checks import Check, CheckedNode, CheckOptions

__all__ = ["DiskCheck", "DiskOptions", "SharedMemoryCheck", "SharedMemoryOptions"]


class DiskOptions(CheckOptions):
    """Amount of data to write, and the limits."""

    at_least: dict[str, float] = Field(default={"free_gb": 1.0}, description="See every check; here 1 GB by default.")
    mb: int = Field(default=32, ge=1, description="Data that is written, synchronised and removed, in 2^20 bytes.")


class DiskCheck(Check):
    """The file system of the run's folder: ``free_gb`` (10^9 bytes), and ``write_mb_per_s`` with fsync."""

    Options = DiskOptions
    options: DiskOptions

    def measure(self, node: CheckedNode) -> dict[str, float]:
        """See `Check.measure`."""
        free = shutil.disk_usage(node.run_dir).free
        data = os.urandom(1 << 20)
        with tempfile.TemporaryFile(dir=node.run_dir) as file:
            began = time.perf_counter()
            for _ in range(self.options.mb):
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
            seconds = time.perf_counter() - began
        return {"free_gb": free / 1e9, "write_mb_per_s": self.options.mb * len(data) / seconds / 1e6}


class SharedMemoryOptions(CheckOptions):
    """The limit."""

    at_least: dict[str, float] = Field(default={"free_gb": 1.0}, description="See every check; here 1 GB by default.")


class SharedMemoryCheck(Check):
    """The file system for snapshots in memory and for edges within a node: ``free_gb`` (10^9 bytes)."""

    Options = SharedMemoryOptions
    options: SharedMemoryOptions

    def measure(self, node: CheckedNode) -> dict[str, float]:
        """See `Check.measure`."""
        return {"free_gb": shutil.disk_usage(node.shm_dir).free / 1e9}
