"""The level `shrink`: the remaining number of ranks of roles that lost a node."""

from __future__ import annotations

from collections import Counter

from rolemesh import FailoverLevel, Failure, JobView, Pass, RecoveryPlan, hookimpl

__all__ = ["ShrinkLevel"]


class ShrinkLevel(FailoverLevel):
    """Drops the ranks of lost or faulty nodes, as far as their roles may have fewer ranks.

    If a role cannot do without such a rank, the rank gets a new place; the same holds for all ranks of roles with a
    fixed size. Every rank restarts from the newest checkpoint on disk, which is divided among the remaining ranks.
    """

    scope = "job"

    @hookimpl
    def recover(self, failure: Failure, view: JobView) -> RecoveryPlan | Pass:
        """Propose fewer ranks for each role that has some on a lost node. Pass if no role does, or none may have
        fewer."""
        homes = {r.ref: r.node for r in view.ranks}
        gone = {n.node for n in view.nodes if not n.alive}
        if view.verdict is not None and view.verdict.kind == "hardware":
            gone.add(homes.get(failure.ref, failure.node))
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
            tuple(homes), source="disk", avoid=tuple(left), reason=f"{where} left: {told}", resize=fewer
        )
