"""The strategy `subgraph`: clusters of ranks, their nodes, and moves that reduce the traffic between nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace
from pydantic import BaseModel, Field

from rolemesh import ClusterView, PlacementPlan, PlacementRequest, Scheduler
from rolemesh.api.plugin import NoOptions
from rolemesh.errors import PlacementError, nearest
from rolemesh.hookspecs import hookimpl
from rolemesh.placement import PlanBuilder, Wish
from rolemesh_pack import PackScheduler
from rolemesh_subgraph.partition import UNKNOWN, Rank, clusters, edges
from rolemesh_subgraph.refine import Occupancy, Unit, refined
from rolemesh_subgraph.traffic import crossing

__all__ = ["SubgraphOptions", "SubgraphScheduler"]

REFINED = 512
"""Maximum number of ranks that are refined one by one. Beyond it, the better of two plans is used unchanged."""


class SubgraphOptions(BaseModel, extra="forbid"):
    """The roles that take part."""

    roles: list[str] = Field(default_factory=list, description="The roles to place. Default: all without a place.")


class SubgraphScheduler(Scheduler):
    """Places sub-graph by sub-graph, those with the most traffic first, each near its neighbours.

    Then ranks are moved and swapped as long as that reduces the bytes between nodes, starting from this plan and from
    that of `pack`; the better result is the plan. A collective role that fits on one node stays on one, because the
    exchange among its ranks is not a transfer and exceeds any transfer.

    Sizes come from ``edges.sizes`` in the job file. A transfer without a size only decides between equals. A cluster
    for which no node has room is placed rank by rank.
    """

    Options = SubgraphOptions
    options: SubgraphOptions

    @hookimpl
    def place(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        """Give every rank of the roles a slot of its own. Raises `PlacementError` for roles that do not exist."""
        known = {role.role: role for role in request.roles}
        for index, name in enumerate(self.options.roles):
            if name not in known:
                remedy = f"{nearest(name, known)}; roles: {', '.join(known)}"
                raise PlacementError(f"subgraph: there is no role {name!r}", where=f"roles.{index}", remedy=remedy)
        before = PlanBuilder(request, cluster, plan)
        waiting = [(name, rank) for name in self.options.roles or known for rank in before.waiting(name)]
        packed = _packed(request, cluster, plan, waiting)
        together = {role for role, nodes in _nodes(request, packed).items() if len(nodes) == 1}
        plans = [packed, _agglomerated(request, cluster, plan, waiting, together)]
        if 0 < len(waiting) <= REFINED:
            plans += [each for each in [_moved(request, cluster, plan, waiting, found) for found in plans] if each]

        def cost(found: PlacementPlan) -> tuple[int, bool, tuple[float, float]]:
            split = any(len(nodes) > 1 for role, nodes in _nodes(request, found).items() if role in together)
            return len(found.unplaced), split, _weight(request, found)

        return min(plans, key=cost)


def _nodes(request: PlacementRequest, plan: PlacementPlan) -> dict[str, set[str]]:
    """Return the nodes of each collective role."""
    nodes: dict[str, set[str]] = {role.role: set() for role in request.roles if role.group == "collective"}
    for a in plan.assignments:
        if a.role in nodes:
            nodes[a.role].add(plan.slots[a.slot].node)
    return nodes


def _weight(request: PlacementRequest, plan: PlacementPlan) -> tuple[float, float]:
    """Return the bytes that cross nodes. Transfers of unknown size decide between equals."""
    unknown = tuple(replace(transfer, bytes=UNKNOWN) for transfer in request.transfers if transfer.bytes is None)
    return round(crossing(request, plan).crossing, 3), crossing(replace(request, transfers=unknown), plan).crossing


def _packed(request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan, waiting: list[Rank]) -> PlacementPlan:
    """Return the plan of `pack`, as far as it goes."""
    roles = {role for role, _ in waiting}
    decided = Counter([*(a.role for a in plan.assignments), *(u.role for u in plan.unplaced)])
    known = tuple(role for role in request.roles if role.role in roles or decided[role.role] == role.world_size)
    names = {role.role for role in known}
    transfers = tuple(transfer for transfer in request.transfers if {transfer.src, transfer.dst} <= names)
    return PackScheduler(NoOptions()).place(PlacementRequest(known, transfers), cluster, plan)


def _moved(
    request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan, waiting: list[Rank], found: PlacementPlan
) -> PlacementPlan | None:
    """Return `found` with its new ranks moved to reduce the traffic; None if a constraint forbids that."""
    where = {a.ref: found.slots[a.slot].node for a in found.assignments}
    rules = {a.ref: a.rule for a in found.assignments}
    mobile = [rank for rank in waiting if rank in where]
    builder = PlanBuilder(request, cluster, found)
    layout = Occupancy(
        request, where, _units(request, where, mobile), {node: builder.free(node) for node in builder.nodes}
    )
    better = refined(layout)
    builder = PlanBuilder(request, cluster, plan)
    needs = {role.role: role.needs for role in request.roles}
    for rank in sorted(mobile, key=lambda rank: -max(needs[rank[0]].values(), default=0.0)):
        rule = rules[rank] if better[rank] == where[rank] else "subgraph: where it crosses least"
        if builder.put([rank], needs[rank[0]], rule, [better[rank]]) is None:
            return None
    for rank in waiting:
        if rank not in where:
            builder.refuse([rank], needs[rank[0]])
    return builder.build()


def _units(request: PlacementRequest, where: Mapping[Rank, str], mobile: list[Rank]) -> list[Unit]:
    """Return the units: collective roles on one node, and every other rank by itself."""
    whole = {role.role for role in request.roles if role.group == "collective" and role.world_size > 1}
    for role in list(whole):
        on = {where.get((role, rank)) for rank in range(request.role(role).world_size)}
        if len(on) > 1 or not {(role, rank) for rank in range(request.role(role).world_size)} <= set(mobile):
            whole.discard(role)
    groups = [tuple(rank for rank in mobile if rank[0] == role) for role in sorted(whole)]
    return [*groups, *((rank,) for rank in mobile if rank[0] not in whole)]


def _agglomerated(
    request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan, waiting: list[Rank], together: set[str]
) -> PlacementPlan:
    """Return the plan of sub-graphs along the heaviest edges, those with the most traffic first, each near its
    neighbours."""
    builder = PlanBuilder(request, cluster, plan)
    needs = {role.role: role.needs for role in request.roles}
    weighted = edges(request, together)
    found = clusters(waiting, weighted, needs, map(builder.free, builder.nodes))
    neighbours: dict[Rank, list[tuple[Rank, float]]] = {}
    for weight, one, other in weighted:
        neighbours.setdefault(one, []).append((other, weight))
        neighbours.setdefault(other, []).append((one, weight))
    inside = {rank: number for number, cluster_ in enumerate(found) for rank in cluster_}
    heavy: Counter[int] = Counter()
    for weight, one, other in weighted:
        if inside.get(one, -1) == inside.get(other, -2):
            heavy[inside[one]] += weight  # type: ignore[assignment]
    for number in sorted(range(len(found)), key=lambda number: (-heavy[number], number)):
        _place(number, found[number], needs, neighbours, builder)
    return builder.build()


def _place(
    number: int,
    ranks: list[Rank],
    needs: Mapping[str, Mapping[str, float]],
    neighbours: dict[Rank, list[tuple[Rank, float]]],
    builder: PlanBuilder,
) -> None:
    wishes = [Wish([rank], needs[rank[0]], f"subgraph: sub-graph {number} of {len(ranks)} ranks") for rank in ranks]
    near = _near(ranks, neighbours, builder)
    if builder.put_together(wishes, near) is not None or builder.put_together(wishes) is not None:
        return
    for wish in wishes:
        (rank,) = wish.members
        beside = _near([rank], neighbours, builder)
        rule = f"subgraph: no node has room for sub-graph {number} of {len(ranks)} ranks"
        if builder.put([rank], wish.needs, rule, beside) or builder.put([rank], wish.needs, rule):
            continue
        builder.refuse([rank], wish.needs)


def _near(ranks: list[Rank], neighbours: dict[Rank, list[tuple[Rank, float]]], builder: PlanBuilder) -> list[str]:
    """Return the nodes of the ranks that these ranks exchange data with, the heaviest first."""
    weight: dict[str, float] = {}
    for rank in ranks:
        for other, bytes_ in neighbours.get(rank, ()):
            node = builder.node_of(*other)
            if node is not None and node in builder.known:
                weight[node] = weight.get(node, 0.0) + bytes_
    return sorted(weight, key=lambda node: (-weight[node], node))
