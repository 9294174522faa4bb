"""The placement strategy: ranks go to the nodes in turn, as cards are dealt."""

from pydantic import BaseModel, Field
from rolemesh import (
    ClusterView,
    PlacementError,
    PlacementPlan,
    PlacementRequest,
    PlanBuilder,
    RankRef,
    RoleRequest,
    Scheduler,
    hookimpl,
)

__all__ = ["{{ cookiecutter.__class }}"]


class {{ cookiecutter.__class }}(Scheduler):
    """Deals the ranks out to the nodes in turn, each on a slot of its own; a node without room is passed over."""

    class Options(BaseModel, extra="forbid"):
        """Options in the job file."""

        roles: list[str] = Field(default_factory=list, description="Roles to deal out; by default all of them.")

    options: Options

    @hookimpl
    def place(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        """Place the ranks that have no place; those that fit nowhere are refused, with what is missing."""
        builder = PlanBuilder(request, cluster, plan)
        nodes, turn = list(builder.nodes), len(plan.assignments)
        for role in self._chosen(request):
            for rank in builder.waiting(role.role):
                start = turn % len(nodes) if nodes else 0
                in_turn = nodes[start:] + nodes[:start]
                slot = builder.put([RankRef(role.role, rank)], role.needs, "dealt out in turn", in_turn)
                if slot is None:
                    builder.refuse([RankRef(role.role, rank)], role.needs)
                else:
                    turn = nodes.index(slot.node) + 1
        return builder.build()

    def _chosen(self, request: PlacementRequest) -> list[RoleRequest]:
        known = [role.role for role in request.roles]
        for index, name in enumerate(self.options.roles):
            if name not in known:
                what, remedy = f"there is no role {name!r}", f"roles: {', '.join(known)}"
                raise PlacementError(what, where=f"roles.{index}", remedy=remedy)
        return [role for role in request.roles if role.role in (self.options.roles or known)]
