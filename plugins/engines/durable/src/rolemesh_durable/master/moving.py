"""The changes for agents and ranks that a new placement plan brings. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rolemesh.api.rank_ref import RankRef
from rolemesh.placement import PlacementPlan
from rolemesh_durable.extensions.turns.slots import taking_turns
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.master.events import Places, PlacesFound
from rolemesh_durable.protocol.master.transitions import Move

__all__ = ["moves_of"]


def moves_of(
    wanted: Places, plan: PlacementPlan, homes: Mapping[RankRef, str], agents: Mapping[str, str]
) -> PlacesFound:
    """Return the changes that `plan` brings.

    `homes` has the present agent of each rank. `agents` has the node of each agent that ever existed, or "" if it may
    not be used. A node without such an agent gets a new one, with a name that no agent has had.
    """
    if plan.unplaced:
        missing = "; ".join(f"{u.ref}: {u.reason}" for u in plan.unplaced)
        remedies = "; ".join(dict.fromkeys(u.remedy for u in plan.unplaced if u.remedy))
        return PlacesFound(wanted, f"{missing} → {remedies}" if remedies else missing)
    at = {node: agent for agent, node in agents.items() if node}
    taken: Collection[str] = {*agents, *homes.values()}
    number = len(taken)
    for a in plan.assignments:
        node = plan.slot(a.slot).node
        if node not in at:
            while f"node{number}" in taken:
                number += 1
            at[node] = f"node{number}"
            number += 1
    local: dict[tuple[str, str], list[int]] = {}
    for a in sorted(plan.assignments, key=lambda a: a.ref):
        local.setdefault((a.role, plan.slot(a.slot).node), []).append(a.rank)
    turns = taking_turns(plan)
    moves, used = [], dict[str, None]()
    for a in plan.assignments:
        slot = plan.slot(a.slot)
        agent = at[slot.node]
        if homes.get(a.ref) != agent:
            used[slot.node] = None
            mates = local[a.role, slot.node]
            gpus = tuple(index for index, _ in slot.gpus)
            on_slot = turns.get(slot.id, ())
            moves.append(Move(a.role, a.rank, agent, mates.index(a.rank), len(mates), gpus, on_slot))
    places = tuple(AgentPlace.of(at[node], node, plan) for node in used)
    return PlacesFound(wanted, "", tuple(moves), places, plan)
