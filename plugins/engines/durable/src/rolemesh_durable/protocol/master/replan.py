"""New places for ranks on lost nodes: asks the job's strategies for a place for each such rank. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from rolemesh.api.cluster import ClusterView
from rolemesh.errors import RolemeshError
from rolemesh.placement import PlacementPlan, PlacementRequest, Strategy, Unplaced
from rolemesh.placement.validation import ask, checked, impossible, revive

__all__ = ["replan", "stranded_in"]


def replan(
    request: PlacementRequest,
    plan: PlacementPlan,
    lost: Collection[str],
    cluster: ClusterView,
    strategies: Sequence[Strategy],
) -> PlacementPlan:
    """Return `plan` for the nodes that are left: ranks on living nodes stay, those on `lost` nodes get new places.

    Nodes of the plan that `cluster` no longer has count as lost, too. Each strategy in turn gets the ranks that are
    still on lost nodes, through its hook `replace`. If it has none, or no answer, it gets them through `place`, like
    ranks that never had a place. Ranks without a place are in `unplaced`, with reasons. Slots of lost nodes are dropped
    and the others numbered again. The function skips a strategy that raises (some plan whole roles only) or returns an
    impossible plan. It reports that strategy's objection if ranks stay without a place.
    """
    plan = revive(plan)
    present = {node.id for node in cluster.nodes}
    gone = {*lost, *(slot.node for slot in plan.slots if slot.node not in present)}
    alive = cluster.without(gone)
    current = plan.without(gone)
    objections: dict[str, None] = {}
    for strategy in strategies:
        stranded = stranded_in(plan, gone, current)
        if stranded is None and len(current.placed()) == sum(role.world_size for role in request.roles):
            break
        try:
            moved = strategy.replace(stranded, tuple(sorted(gone)), alive) if stranded and strategy.replace else None
            if moved is not None:
                current = checked(strategy.name, request, alive, current, _settled(strategy.name, moved, gone))
            else:
                current = ask(strategy.name, strategy.place, request, alive, current)
        except RolemeshError as error:
            objections[error.what] = None
    known = current.placed() | {u.ref for u in current.unplaced}
    why = "; ".join(objections) or "no strategy has a place for it"
    homeless = tuple(
        Unplaced(role.role, rank, why)
        for role in request.roles
        for rank in range(role.world_size)
        if (role.role, rank) not in known
    )
    return msgspec.structs.replace(current, unplaced=current.unplaced + homeless)


def stranded_in(plan: PlacementPlan, gone: Collection[str], current: PlacementPlan) -> PlacementPlan | None:
    """Return `current` with the ranks on `gone` nodes that it has not placed; None if there are none."""
    placed = current.placed()
    left = [a for a in plan.assignments if plan.slot(a.slot).node in gone and a.ref not in placed]
    old = sorted({a.slot for a in left})
    if not old:
        return None
    number = {slot: len(current.slots) + position for position, slot in enumerate(old)}
    return msgspec.structs.replace(
        current,
        slots=current.slots + tuple(msgspec.structs.replace(plan.slot(slot), id=number[slot]) for slot in old),
        assignments=current.assignments + tuple(msgspec.structs.replace(a, slot=number[a.slot]) for a in left),
    )


def _settled(name: str, moved: PlacementPlan, gone: Collection[str]) -> PlacementPlan:
    """Return a strategy's answer to `replace` without the slots on lost nodes that it may contain."""
    if not isinstance(moved, PlacementPlan):
        raise impossible(name, f"returned a {type(moved).__name__}, not a PlacementPlan")
    if [slot.id for slot in moved.slots] != list(range(len(moved.slots))):
        raise impossible(name, "numbered its slots other than by position")
    settled = moved.without(gone)
    return msgspec.structs.replace(settled, unplaced=moved.unplaced)
