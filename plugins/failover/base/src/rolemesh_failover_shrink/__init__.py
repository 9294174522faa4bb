"""Fewer ranks: roles that lost a node continue without its ranks."""

from __future__ import annotations

from rolemesh_failover_shrink.level import ShrinkLevel

__all__ = ["ShrinkLevel"]
