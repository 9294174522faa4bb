"""The placement strategy `pack`: a slot for each rank, on the first node where it fits."""

from __future__ import annotations

from rolemesh.api.cluster import ClusterView
from rolemesh.api.rank_ref import RankRef
from rolemesh.api.scheduler import Scheduler
from rolemesh.hookspecs import hookimpl
from rolemesh.placement import PlacementPlan, PlacementRequest, PlanBuilder, RoleRequest


class PackScheduler(Scheduler):
    """First fit, node by node, with a slot for each rank.

    Collective roles come first, and stay on one node if one can hold them, otherwise on as few as possible. Then come
    the other roles, those with the largest ranks first. A rank goes near the ranks with which it exchanges values, if
    there is room. Ranks without needs (``cpu: 0``) fit everywhere.
    """

    @hookimpl
    def place(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        """Give a slot to every rank that has none and is not `Unplaced`. If there is no room for it, it becomes
        `Unplaced`."""
        builder = PlanBuilder(request, cluster, plan)
        for role in sorted(request.roles, key=_first):
            _place(role, builder)
        return builder.build()

    @hookimpl
    def replace(self, plan: PlacementPlan, lost: tuple[str, ...], cluster: ClusterView) -> PlacementPlan | None:
        """Move the slots of lost nodes, with all ranks on them, to the first node with room."""
        builder = PlanBuilder(PlacementRequest(()), cluster.without(lost), plan.without(lost))
        leaving = [slot for slot in plan.slots if slot.node in lost]
        for slot in sorted(leaving, key=lambda slot: (-slot.gpu, -sum(slot.custom.values()), -slot.cpu)):
            on_it = [a for a in plan.assignments if a.slot == slot.id]
            peers = {a.ref: a.peers for a in on_it}
            shares = {a.role: a.share for a in on_it}
            needs = {"cpu": slot.cpu, "gpu": slot.gpu, **slot.custom}
            rule = f"pack: moved, {slot.node} is lost"
            if builder.put(list(peers), needs, rule, shares=shares, peers=peers, turns=slot.turns) is None:
                return None
        return builder.build()


def _place(role: RoleRequest, builder: PlanBuilder) -> None:
    """Place the ranks of `role` that have no place."""
    ranks = builder.waiting(role.role)
    if role.group == "collective" and len(ranks) > 1:
        nodes = _together(role, len(ranks), builder)
        why = "all of the group on one node" if len(nodes) == 1 else "the group on as few nodes as possible"
        for node in nodes:
            while ranks and builder.put([RankRef(role.role, ranks[0])], role.needs, f"pack: {why}", (node,)):
                ranks.pop(0)
    for rank in ranks:
        member = [RankRef(role.role, rank)]
        beside = _near(role, rank, builder)
        if any(builder.put(member, role.needs, f"pack: beside {who}", (node,)) for node, who in beside.items()):
            continue
        if not builder.put(member, role.needs, "pack: first fit"):
            builder.refuse(member, role.needs)


def _together(role: RoleRequest, count: int, builder: PlanBuilder) -> list[str]:
    """Return the first node that can hold all `count` ranks; or all nodes, sorted by how many they can hold."""
    room = {node: builder.room(role.role, role.needs, node, count) for node in builder.nodes}
    for node in [*_near(role, 0, builder), *builder.nodes]:
        if room[node] == count:
            return [node]
    return sorted(builder.nodes, key=lambda node: -room[node])


def _near(role: RoleRequest, rank: int, builder: PlanBuilder) -> dict[str, str]:
    """Return the nodes of the ranks with which this one exchanges values, and such a rank on each."""
    near: dict[str, str] = {}
    for transfer in builder.request.transfers:
        if role.role in (transfer.src, transfer.dst):
            other = transfer.dst if transfer.src == role.role else transfer.src
            peer = rank * builder.request.role(other).world_size // role.world_size
            node = builder.node_of(other, peer)
            if node is not None and node in builder.known:
                near.setdefault(node, f"{other}/{peer}")
    return near


def _first(role: RoleRequest) -> tuple[object, ...]:
    return (role.group != "collective", -role.gpu, -sum(role.custom.values()), -role.cpu)
