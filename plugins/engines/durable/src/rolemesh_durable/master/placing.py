"""Places for ranks after a change (more, fewer, or larger ones), and whether their states can be cut for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from rolemesh.api.cluster import ClusterView
from rolemesh.api.rank_ref import RankRef
from rolemesh.errors import PlacementError
from rolemesh.placement import Assignment, Capacity, PlacementPlan, PlacementRequest, Strategy
from rolemesh_checkpoint import disk
from rolemesh_checkpoint.reshard import owned
from rolemesh_durable.master.moving import moves_of
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.replan import replan

__all__ = ["find_places", "grown", "resourced", "room_for", "sized", "why_not_cut"]

MOST_TRIED = 8
"""Maximum number of additional ranks of a role for which a search looks for room."""


def sized(request: PlacementRequest, sizes: Mapping[str, int]) -> PlacementRequest:
    """Return `request` with these numbers of ranks of some roles."""
    roles = (msgspec.structs.replace(each, world_size=sizes.get(each.role, each.world_size)) for each in request.roles)
    return msgspec.structs.replace(request, roles=tuple(roles))


def resourced(request: PlacementRequest, resources: Mapping[str, Mapping[str, float]]) -> PlacementRequest:
    """Return `request` with these resources for each rank of some roles."""
    roles = []
    for each in request.roles:
        if has := dict(resources.get(each.role, {})):
            each = msgspec.structs.replace(each, cpu=has.pop("cpu"), gpu=has.pop("gpu"), custom=has)
        roles.append(each)
    return msgspec.structs.replace(request, roles=tuple(roles))


def find_places(
    wanted: e.Places,
    now: PlacementRequest,
    plan: PlacementPlan,
    cluster: ClusterView,
    strategies: Sequence[Strategy],
    homes: Mapping[RankRef, str],
    agents: Mapping[str, str],
) -> e.PlacesFound:
    """Return places for all ranks. `now` has their present requests, and `plan` their present places.

    A rank keeps its place as far as `wanted` lets it. `homes` has the present agent of each rank, `agents` the node of
    each agent, or "" if it may not be used. Raises `PlacementError` (see `grown`).
    """
    request = resourced(sized(now, wanted.sizes), wanted.resources)
    if wanted.sizes:
        plan = _only(plan, [a for a in plan.assignments if a.rank < wanted.sizes.get(a.role, a.rank + 1)])
    if wanted.resources:
        plan = grown(now, request, plan, wanted.resources, cluster.without(wanted.away))
    changing = {*wanted.sizes, *wanted.resources}
    unchanged = {key: agent for key, agent in homes.items() if key[0] not in changing}
    found = moves_of(wanted, replan(request, plan, wanted.away, cluster, strategies), unchanged, agents)
    if not wanted.sizes:
        return found
    others = sorted({str(m.ref) for m in found.moves if m.role not in changing})
    turns = {mate for m in found.moves if m.role in changing for mate in m.turns if mate[0] != m.role}
    why = ""
    if found.why:
        why = f"there is no room: {found.why}"
    elif others and wanted.others_stay:
        why = f"there is no room unless {', '.join(others)} move, which are not resized"
    elif turns:
        mates = ", ".join(sorted(map(str, turns)))
        why = f"there is no room but on slots of {mates}, with which new ranks would take turns"
    return e.PlacesFound(wanted, why) if why else found


def grown(
    before: PlacementRequest,
    request: PlacementRequest,
    plan: PlacementPlan,
    roles: Collection[str],
    cluster: ClusterView,
) -> PlacementPlan:
    """Return `plan` with the new `request` of ranks of `roles`, which had the request `before`.

    They stay on their slots if their nodes have enough. Otherwise they have no place. Raises `PlacementError` for a
    rank on a shared slot: the others there would have to move with it.
    """
    capacity, slots, away = Capacity(cluster, plan.slots), list(plan.slots), set[int]()
    needs = {role: (before.role(role).needs, request.role(role).needs) for role in roles}
    for slot in plan.slots:
        here = [a for a in plan.assignments if a.slot == slot.id]
        more: Counter[str] = Counter()
        for has, wants in (needs[a.role] for a in here if a.role in needs):
            more.update({name: amount - has.get(name, 0.0) for name, amount in wants.items()})
        if not more or slot.node not in capacity.nodes:
            continue  # those of lost nodes are placed again anyway
        extra = None if more["gpu"] else capacity.take(slot.id, slot.node, more)
        if extra is not None:
            custom = dict(Counter(slot.custom) + Counter(extra.custom))
            slots[slot.id] = msgspec.structs.replace(slot, cpu=slot.cpu + extra.cpu, custom=custom)
        elif others := sorted({a.role for a in here} - set(roles)):
            what = f"node {slot.node} has no room for more, and {here[0].ref} shares its slot"
            raise PlacementError(f"{what} with {', '.join(others)}")
        else:
            away.add(slot.id)
    plan = msgspec.structs.replace(plan, slots=tuple(slots))
    return _only(plan, [a for a in plan.assignments if a.slot not in away])


def _only(plan: PlacementPlan, kept: Sequence[Assignment]) -> PlacementPlan:
    """Return `plan` with only these assignments and their slots, numbered again."""
    used = sorted({a.slot for a in kept})
    number = {slot: position for position, slot in enumerate(used)}
    return msgspec.structs.replace(
        plan,
        slots=tuple(msgspec.structs.replace(plan.slot(slot), id=number[slot]) for slot in used),
        assignments=tuple(msgspec.structs.replace(a, slot=number[a.slot]) for a in kept),
        unplaced=(),
    )


def room_for(
    role: str,
    most: int,
    request: PlacementRequest,
    plan: PlacementPlan,
    cluster: ClusterView,
    strategies: Sequence[Strategy],
) -> int:
    """Return how many ranks a role could have now, up to `most`, and at most `MOST_TRIED` more than now."""
    size = now = request.role(role).world_size
    while size < min(most, now + MOST_TRIED):
        if replan(sized(request, {role: size + 1}), plan, (), cluster, strategies).unplaced:
            break
        size += 1
    return size


def why_not_cut(folder: Path, roles: Collection[str], collective: Collection[str]) -> str:
    """Return why another number of ranks cannot use a role's states in a persisted snapshot; "" if it can.

    Raises `SnapshotError`.
    """
    for role in roles:
        states = disk.states(folder, role)
        if path := owned(states, alone=role not in collective) if states else "":
            what = f"{path} of role {role} belongs to each rank, and nothing says how other ranks should divide it"
            return f"{what}: store it as a Shard"
    return ""
