"""The last level: every rank returns to the last checkpoint on disk."""

from __future__ import annotations

from rolemesh_failover_job.level import JobLevel

__all__ = ["JobLevel"]
