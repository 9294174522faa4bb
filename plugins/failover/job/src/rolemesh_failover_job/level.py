"""The level: everything again, from the newest complete snapshot on disk."""

from __future__ import annotations

from rolemesh import FailoverLevel, Failure, JobView, RecoveryPlan, hookimpl

__all__ = ["JobLevel"]


class JobLevel(FailoverLevel):
    """Restarts every rank from the newest persisted snapshot, or from the beginning if there is none.

    It trusts nothing that is in memory, so it also helps where snapshots there are lost or where the restored state
    itself leads to the failure. Ranks of dead nodes get new places; it does not wait for any.
    """

    scope = "job"

    @hookimpl
    def recover(self, failure: Failure, view: JobView) -> RecoveryPlan:
        """All ranks, whatever the failure."""
        since = (
            f"step {view.persisted}, the last on disk" if view.persisted >= 0 else "the beginning: nothing is on disk"
        )
        return RecoveryPlan(
            "job",
            tuple((r.role, r.rank) for r in view.ranks),
            source="disk",
            avoid=tuple(n.node for n in view.nodes if not n.alive),
            reason=f"every rank starts again from {since}",
        )
