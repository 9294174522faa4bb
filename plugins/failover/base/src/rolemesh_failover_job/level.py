"""The level `job`: restart everything from the newest complete checkpoint on disk."""

from __future__ import annotations

from rolemesh import FailoverLevel, Failure, JobView, RecoveryPlan, hookimpl

__all__ = ["JobLevel"]


class JobLevel(FailoverLevel):
    """Restarts every rank from the newest checkpoint on disk, or from the beginning if there is none.

    It does not rely on memory, so it also helps if snapshots in memory are lost, or if the restored state itself causes
    the failure. Ranks of dead nodes get new places; the level does not wait for room.
    """

    scope = "job"

    @hookimpl
    def recover(self, failure: Failure, view: JobView) -> RecoveryPlan:
        """Restart all ranks after any failure."""
        since = (
            f"step {view.persisted}, the last on disk" if view.persisted >= 0 else "the beginning: nothing is on disk"
        )
        return RecoveryPlan(
            tuple(r.ref for r in view.ranks),
            source="disk",
            avoid=tuple(n.node for n in view.nodes if not n.alive),
            reason=f"every rank starts again from {since}",
        )
