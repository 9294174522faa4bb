"""The level: which ranks go down with a failure, and start again on the nodes where they were."""

from __future__ import annotations

from rolemesh import FailoverLevel, Failure, JobView, RecoveryPlan, hookimpl

__all__ = ["ProcessLevel"]


class ProcessLevel(FailoverLevel):
    """Restarts what died, where it was, from the snapshots in the node's memory.

    That is one rank, or all ranks of its collective role; for a lost agent, the ranks it had and their groups. Memory
    of a lost node is lost with it, so such a failure is passed on.
    """

    scope = "process"

    @hookimpl
    def recover(self, failure: Failure, view: JobView) -> RecoveryPlan | None:
        """The smallest restart there is; None for a lost node and for a rank that the job does not have."""
        restart = view.lost_with(failure)
        if failure.cause == "node_lost" or not restart:
            return None
        return RecoveryPlan("process", restart, reason="its process starts again where it was, from the node's memory")
