"""Processes restart on their node: the dead rank, or its collective group, from the node's memory."""

from __future__ import annotations

from rolemesh_failover_process.level import ProcessLevel

__all__ = ["ProcessLevel"]
