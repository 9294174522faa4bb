"""The strategy `separation`: it places no ranks, and adds constraints for the strategies that follow."""

from __future__ import annotations

from itertools import combinations

from rolemesh import ClusterView, PlacementPlan, PlacementRequest, Scheduler
from rolemesh.errors import PlacementError, nearest
from rolemesh.hookspecs import hookimpl
from rolemesh.placement import Apart, Constraint, PlanBuilder, Spread, Within
from rolemesh_separation.options import SeparationOptions

__all__ = ["SeparationScheduler"]

NAME = "separation"


class SeparationScheduler(Scheduler):
    """Adds constraints to the plan. The strategies that follow, and finally `pack`, place the ranks."""

    Options = SeparationOptions
    options: SeparationOptions

    @hookimpl
    def place(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        """Add the constraints of the options. Raises `PlacementError` for unknown roles and labels."""
        builder = PlanBuilder(request, cluster, plan)
        for where, constraint in _constraints(self.options):
            _check(constraint, where, request, cluster)
            builder.constrain(constraint)
        return builder.build()


def _constraints(options: SeparationOptions) -> list[tuple[str, Constraint]]:
    """Return the constraints, each with its place in the options."""
    found: list[tuple[str, Constraint]] = []
    for index, parts in enumerate(options.apart):
        pairs = combinations(parts.groups, 2)
        found += [(f"apart.{index}", Apart(NAME, tuple(a), tuple(b), parts.by)) for a, b in pairs]
    for role, spread in options.spread.items():
        found.append((f"spread.{role}", Spread(NAME, role, spread.most, spread.over)))
    for role, labels in options.nodes.items():
        found.append((f"nodes.{role}", Within(NAME, role, tuple(labels.items()))))
    return found


def _check(constraint: Constraint, where: str, request: PlacementRequest, cluster: ClusterView) -> None:
    known = [role.role for role in request.roles]
    named = (*constraint.left, *constraint.right) if isinstance(constraint, Apart) else (constraint.role,)
    for role in named:
        if role not in known:
            what = f"{NAME}: there is no role {role!r}"
            raise PlacementError(what, where=where, remedy=f"{nearest(role, known)}; roles: {', '.join(known)}")
    labels = sorted({label for node in cluster.nodes for label in node.labels})
    if isinstance(constraint, Within):
        for name, value in constraint.labels:
            if name not in labels:
                raise _unlabelled(name, f"{where}.{name}", labels)
            values = sorted({node.labels[name] for node in cluster.nodes if name in node.labels})
            if value not in values:
                what = f"{NAME}: {constraint.role} needs nodes with {name}={value}, and no node has that"
                raise PlacementError(what, where=f"{where}.{name}", remedy=f"{name} is one of {', '.join(values)}")
    elif constraint.domain.startswith("label."):
        name = constraint.domain.removeprefix("label.")
        if name not in labels:
            raise _unlabelled(name, where, labels)


def _unlabelled(name: str, where: str, labels: list[str]) -> PlacementError:
    what = f"{NAME}: no node has a label {name!r}"
    remedy = (
        nearest(name, labels)
        if labels
        else "no node has any label; give them some, e.g. --nodes '(cpu=8,label.rack=a)'"
    )
    return PlacementError(what, where=where, remedy=remedy)
