"""The placement strategy `even`: it adds a constraint of its own, which all strategies of the job obey."""

from __future__ import annotations

from pydantic import BaseModel, Field
from rolemesh import ClusterView, NodeView, PlacementPlan, PlacementRequest, Scheduler, hookimpl
from rolemesh.errors import PlacementError, nearest
from rolemesh.placement import Constraint, PlanBuilder
from rolemesh.placement.constraints import Placed, Ranks

__all__ = ["Even", "Skew"]


class Skew(Constraint, frozen=True, tag="rolemesh-toolbox.Skew"):
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
        """Return the plan with a constraint for each role. Raises `PlacementError` for a role that the job does not
        have.
        """
        names = [role.role for role in request.roles]
        for index, role in enumerate(self.options.roles):
            if role not in names:
                what, where = f"there is no role {role!r}", f"roles.{index}"
                raise PlacementError(what, where=where, remedy=nearest(role, names))
        builder = PlanBuilder(request, cluster, plan)
        for role in self.options.roles or names:
            builder.constrain(Skew("even", role, self.options.most, self.options.domain))
        return builder.build()
