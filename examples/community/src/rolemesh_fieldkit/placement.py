"""The placement strategies `spread`, which uses many nodes, and `even`, which limits the others by a constraint."""

from __future__ import annotations

from collections import Counter

from pydantic import BaseModel, Field
from rolemesh import (
    ClusterView,
    NodeView,
    PlacementPlan,
    PlacementRequest,
    RankRef,
    RoleRequest,
    Scheduler,
    hookimpl,
)
from rolemesh.errors import PlacementError, nearest
from rolemesh.placement import Constraint, PlanBuilder
from rolemesh.placement.constraints import Placed, Ranks

__all__ = ["Even", "Skew", "Spread"]


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
        """Return the plan with the ranks that have room."""
        builder = PlanBuilder(request, cluster, plan)
        for role in _chosen(self.options.roles, request):
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


class Skew(Constraint, frozen=True, tag="rolemesh-fieldkit.Skew"):
    """Domains differ by at most `most` ranks of `role`, as topology spread constraints of Kubernetes do."""

    role: str
    most: int
    domain: str

    def forbids(self, ranks: Ranks, node: NodeView, placed: Placed) -> bool:
        """True if `node`'s domain would have too many ranks. A node without the label is in no domain."""
        here, more = placed.here(self.domain, node), len(ranks.get(self.role, ()))
        if not more or here is None:
            return bool(more)
        least = min(each[self.role] for each in placed.domains(self.domain).values())
        return here[self.role] + more - least > self.most

    def told(self) -> str:
        """Describe the constraint for users."""
        return f"{self.by} lets {self.domain} differ by {self.most} ranks of {self.role}"


class EvenOptions(BaseModel, extra="forbid"):
    """Options of the `even` strategy."""

    roles: list[str] = Field(default_factory=list, description="The roles that are kept even; all of them if empty.")
    most: int = Field(default=1, ge=1, description="By how many ranks of a role two domains may differ.")
    domain: str = Field(
        default="node",
        pattern=r"node|label\..+",
        description="What is kept even: node, or label.NAME such as label.rack.",
    )


class Even(Scheduler):
    """Adds a constraint and places nothing. The strategies after it then spread a role's ranks evenly over domains."""

    Options = EvenOptions
    options: EvenOptions
    api_version = 1

    @hookimpl
    def place(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        """Return the plan with a constraint for each role."""
        builder = PlanBuilder(request, cluster, plan)
        for role in _chosen(self.options.roles, request):
            builder.constrain(Skew("even", role.role, self.options.most, self.options.domain))
        return builder.build()


def _chosen(names: list[str], request: PlacementRequest) -> list[RoleRequest]:
    """Return the roles with these names, or all of them. Raises `PlacementError` for a role that the job lacks."""
    known = [role.role for role in request.roles]
    for number, name in enumerate(names):
        if name not in known:
            raise PlacementError(f"there is no role {name!r}", where=f"roles.{number}", remedy=nearest(name, known))
    return [role for role in request.roles if not names or role.role in names]
