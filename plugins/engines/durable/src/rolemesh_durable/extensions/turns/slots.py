"""The slots on which ranks take turns. Apart from `order`, because ranks need no placement plan."""

from __future__ import annotations

from rolemesh.api.rank_ref import RankRef
from rolemesh.placement import PlacementPlan

__all__ = ["taking_turns"]


def taking_turns(plan: PlacementPlan) -> dict[int, tuple[RankRef, ...]]:
    """Return the ranks of each slot on which several ranks take turns."""
    members: dict[int, list[RankRef]] = {}
    for a in plan.assignments:
        if plan.slots[a.slot].turns:
            members.setdefault(a.slot, []).append(a.ref)
    return {slot: tuple(ranks) for slot, ranks in members.items() if len(ranks) > 1}
