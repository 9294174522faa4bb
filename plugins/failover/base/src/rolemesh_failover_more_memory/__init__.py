"""More memory: a role that ran out of memory restarts with more."""

from __future__ import annotations

from rolemesh_failover_more_memory.level import MoreMemoryLevel

__all__ = ["MoreMemoryLevel"]
