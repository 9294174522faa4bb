"""Checks of a node: memory, processors or GPUs, disk, shared memory and network."""

from __future__ import annotations

from rolemesh_checks.compute import MatmulCheck, MemoryCheck
from rolemesh_checks.network import NetworkCheck
from rolemesh_checks.room import DiskCheck, SharedMemoryCheck

__all__ = ["DiskCheck", "MatmulCheck", "MemoryCheck", "NetworkCheck", "SharedMemoryCheck"]
