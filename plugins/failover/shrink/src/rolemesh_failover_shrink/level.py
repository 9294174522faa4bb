"""The level: how many ranks the roles are left with that have lost a node."""

from __future__ import annotations

from collections import Counter

from rolemesh import FailoverLevel, Failure, JobView, Pass, RecoveryPlan, hookimpl

__all__ = ["ShrinkLevel"]


class ShrinkLevel(FailoverLevel):
    """Does without the ranks of nodes that are gone or at fault, as far as their roles may have fewer.

    A rank of such a node that its role cannot do without gets a new place, as all ranks do whose role has one size
    only. Every rank starts again from the newest persisted snapshot, which is cut for the ranks that are left.
    """

    scope = "job"

    @hookimpl
    def recover(self, failure: Failure, view: JobView) -> RecoveryPlan | Pass:
        """Fewer ranks of each role that has some on a lost node; a pass where none has, or none may have fewer."""
        homes = {(r.role, r.rank): r.node for r in view.ranks}
        gone = {n.node for n in view.nodes if not n.alive}
        if view.verdict is not None and view.verdict.kind == "hardware":
            gone.add(homes.get((failure.role, failure.rank), failure.node))
        left = sorted(gone & {*homes.values()})
        if not left:
            return Pass("no rank has lost its node")
        sizes = Counter(role for role, _ in homes)
        lost = Counter(role for (role, _), node in homes.items() if node in gone)
        fewer = {
            role: max(view.ranges[role][0], sizes[role] - count) for role, count in lost.items() if role in view.ranges
        }
        fewer = {role: size for role, size in fewer.items() if size < sizes[role]}
        where = f"node{'s' * (len(left) > 1)} {', '.join(left)}"
        if not fewer:
            roles = ", ".join(f"{role} ({sizes[role]})" for role in lost)
            return Pass(f"the roles that had ranks on {where} may not have fewer: {roles}")
        told = ", ".join(f"{role} with {size} ranks instead of {sizes[role]}" for role, size in fewer.items())
        return RecoveryPlan(
            "shrink", tuple(homes), source="disk", avoid=tuple(left), reason=f"{where} left: {told}", resize=fewer
        )
