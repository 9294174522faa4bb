"""More memory: a role that has run out of it goes on where there is more."""

from __future__ import annotations

from rolemesh_failover_more_memory.level import MoreMemoryLevel

__all__ = ["MoreMemoryLevel"]
