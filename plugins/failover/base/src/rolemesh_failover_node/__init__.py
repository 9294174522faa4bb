"""Ranks leave a lost or faulty node and restart elsewhere from the snapshots in memory."""

from __future__ import annotations

from rolemesh_failover_node.level import NodeLevel, NodeOptions

__all__ = ["NodeLevel", "NodeOptions"]
