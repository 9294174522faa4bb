"""The last defence: every rank goes back to the last step that is on disk."""

from __future__ import annotations

from rolemesh_failover_job.level import JobLevel

__all__ = ["JobLevel"]
