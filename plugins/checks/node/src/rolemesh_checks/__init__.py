"""Checks of a node: its memory, its processors or GPUs, its disk, its shared memory and its network."""

from __future__ import annotations

from rolemesh_checks.compute import MatmulCheck, MemoryCheck
from rolemesh_checks.network import NetworkCheck
from rolemesh_checks.room import DiskCheck, SharedMemoryCheck

__all__ = ["DiskCheck", "MatmulCheck", "MemoryCheck", "NetworkCheck", "SharedMemoryCheck"]
