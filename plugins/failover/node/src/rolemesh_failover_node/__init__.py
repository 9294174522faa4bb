"""Ranks leave a node that is lost or at fault, and start again elsewhere from the snapshots in memory."""

from __future__ import annotations

from rolemesh_failover_node.level import NodeLevel, NodeOptions

__all__ = ["NodeLevel", "NodeOptions"]
