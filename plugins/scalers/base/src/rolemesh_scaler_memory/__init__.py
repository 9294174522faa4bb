"""More ranks for a role before its ranks run out of memory."""

from __future__ import annotations

from rolemesh_scaler_memory.scaler import MemoryOptions, MemoryScaler

__all__ = ["MemoryOptions", "MemoryScaler"]
