"""The level `process`: restart the ranks that a failure takes down, on their own nodes."""

from __future__ import annotations

from rolemesh import FailoverLevel, Failure, JobView, RecoveryPlan, hookimpl

__all__ = ["ProcessLevel"]


class ProcessLevel(FailoverLevel):
    """Restarts the dead ranks on their nodes, from the snapshots in the node's memory.

    For a failed rank, that is the rank or all ranks of its collective role; for a lost agent, its ranks and their
    groups. The memory of a lost node is lost with it, so the level passes such a failure on.
    """

    scope = "process"

    @hookimpl
    def recover(self, failure: Failure, view: JobView) -> RecoveryPlan | None:
        """Return the smallest possible restart; None for a lost node or a rank that the job does not have."""
        restart = view.lost_with(failure)
        if failure.cause == "node_lost" or not restart:
            return None
        return RecoveryPlan(restart, reason="its process starts again where it was, from the node's memory")
