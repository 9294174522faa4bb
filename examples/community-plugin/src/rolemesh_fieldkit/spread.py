"""The placement strategy `spread`: it places a role's ranks on as many nodes as possible."""

from __future__ import annotations

from collections import Counter

from pydantic import BaseModel, Field
from rolemesh import ClusterView, PlacementPlan, PlacementRequest, RankRef, RoleRequest, Scheduler, hookimpl
from rolemesh.errors import PlacementError
from rolemesh.placement import PlanBuilder

__all__ = ["Spread"]


class SpreadOptions(BaseModel, extra="forbid"):
    """Options of the `spread` strategy."""

    roles: list[str] = Field(default_factory=list, description="The roles that are spread; all of them if empty.")


class Spread(Scheduler):
    """Places a role's ranks on the nodes in turns, so that a lost node takes few of them along.

    It demands nothing: if only one node has room, all ranks go there. It leaves ranks that fit nowhere to the
    strategies after it.
    """

    Options = SpreadOptions
    options: SpreadOptions
    api_version = 1

    @hookimpl
    def place(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        """Raise `PlacementError` for a role that the job does not have."""
        known = [role.role for role in request.roles]
        for number, name in enumerate(self.options.roles):
            if name not in known:
                remedy = f"the job has {', '.join(known)}"
                raise PlacementError(f"spread: there is no role {name!r}", where=f"roles.{number}", remedy=remedy)
        builder = PlanBuilder(request, cluster, plan)
        for role in request.roles:
            if not self.options.roles or role.role in self.options.roles:
                _spread(role, builder)
        return builder.build()


def _spread(role: RoleRequest, builder: PlanBuilder) -> None:
    """Place ranks in rounds over the nodes that had room in the previous one. Nodes with fewest ranks come first."""
    ranks = builder.waiting(role.role)
    there = Counter(builder.node_of(role.role, rank) for rank in range(role.world_size))
    nodes = list(builder.nodes)
    round_ = 0
    while ranks and nodes:
        why = f"spread: {round_} of its role there before it" if round_ else "spread: the first of its role there"
        had_room = []
        for node in nodes:
            if there[node] > round_:
                had_room.append(node)
            elif ranks and builder.put([RankRef(role.role, ranks[0])], role.needs, why, (node,)):
                ranks.pop(0)
                had_room.append(node)
        nodes = had_room
        round_ += 1
