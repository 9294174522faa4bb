"""The strategy: clusters of ranks, and the nodes they go to."""

from __future__ import annotations

from collections import Counter

from pydantic import BaseModel, Field

from rolemesh import ClusterView, PlacementPlan, PlacementRequest, Scheduler
from rolemesh.errors import PlacementError, nearest
from rolemesh.hookspecs import hookimpl
from rolemesh.placement import PlanBuilder, Wish
from rolemesh_subgraph.partition import Rank, clusters, edges

__all__ = ["SubgraphOptions", "SubgraphScheduler"]


class SubgraphOptions(BaseModel, extra="forbid"):
    """Who takes part."""

    roles: list[str] = Field(default_factory=list, description="The roles to place. Default: all that have no place.")


class SubgraphScheduler(Scheduler):
    """Places sub-graph by sub-graph, those that move most bytes first, each where its neighbours are.

    Sizes come from ``edges.sizes`` in the job file; a flow without one counts only where nothing else decides.
    A cluster that no node has room for is placed rank by rank.
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
        builder = PlanBuilder(request, cluster, plan)
        waiting = [(name, rank) for name in self.options.roles or known for rank in builder.waiting(name)]
        needs = {name: role.needs for name, role in known.items()}
        weighted = edges(request)
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
    needs: dict[str, dict[str, float]],
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
    """The nodes of those that these ranks give to or take from, the heaviest first."""
    weight: dict[str, float] = {}
    for rank in ranks:
        for other, bytes_ in neighbours.get(rank, ()):
            node = builder.node_of(*other)
            if node is not None and node in builder.known:
                weight[node] = weight.get(node, 0.0) + bytes_
    return sorted(weight, key=lambda node: (-weight[node], node))
