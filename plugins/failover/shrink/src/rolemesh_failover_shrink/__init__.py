"""Fewer ranks: roles that have lost a node go on without its ranks."""

from __future__ import annotations

from rolemesh_failover_shrink.level import ShrinkLevel

__all__ = ["ShrinkLevel"]
