"""What the standard tests of a placement strategy are made with: the strategy, what it is asked, and what it is asked
about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import msgspec
import pytest
from hypothesis import strategies as st
from pydantic import BaseModel

from rolemesh.builtin.pack import PackScheduler
from rolemesh.cluster import ClusterView, NodeView
from rolemesh.errors import RolemeshError
from rolemesh.placement import Flow, PlacementPlan, PlacementRequest, RoleRequest, Strategy
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.replanning import ask
from rolemesh.testing import strategies
from rolemesh.testing.conformance import PluginConformance
from rolemesh.testing.elsewhere import Subject
from rolemesh.testing.planner import Planner, Refused
from rolemesh.workload import NoOptions

__all__ = ["PACK", "PlacementConformance", "Situation", "answered", "multiplied", "planned"]

_PACK = PackScheduler(NoOptions())
PACK = Strategy("pack", _PACK.place, _PACK.replace)
"""The strategy to which a job gives the ranks that no other has placed."""


class Situation(NamedTuple):
    """What a strategy is asked about: `before` is what those before it have decided."""

    request: PlacementRequest
    cluster: ClusterView
    before: PlacementPlan = PlacementPlan()


class PlacementConformance(PluginConformance):
    """Fixtures of `SchedulerConformance`. What an author may replace is `roles`, `labels`, `asked` and `roomy`."""

    kind = "schedulers"
    roles: ClassVar[tuple[str, ...]] = ("actor", "critic", "data")
    """The roles of every request, for a strategy whose options name roles."""
    labels: ClassVar[Mapping[str, tuple[str, ...]]] = {"rack": ("a", "b", "c"), "zone": ("north", "south")}
    """The labels of nodes with their values, for a strategy whose options name labels."""
    examples: ClassVar[int] = 40
    """How many requests and clusters are drawn in a test."""

    @pytest.fixture
    def asked(self) -> PlacementRequest:
        """What the strategy must be able to plan where there is room: the whole job, two ranks of each role.

        Tests also ask for multiples of it.
        """
        first, *others = self.roles
        return PlacementRequest(
            (RoleRequest(first, 2, group="collective"), *(RoleRequest(role, 2) for role in others)),
            tuple(Flow(src, dst, "aligned", 1e6) for src, dst in zip(self.roles, self.roles[1:], strict=False)),
        )

    @pytest.fixture
    def roomy(self) -> ClusterView:
        """A cluster where there is room, also when one node is lost."""
        return ClusterView(tuple(self._node(number, cpu=64.0, gpu=8) for number in range(6)))

    @pytest.fixture
    def planner(self, record: PluginRecord, cls: type[Any], checked_options: BaseModel) -> Planner:
        """The strategy."""
        return Planner(record, cls, checked_options)

    @pytest.fixture
    def subject(self, record: PluginRecord) -> Subject:
        """The strategy, for another process."""
        return Subject(record, dict(self.options), "")

    @pytest.fixture
    def shapes(self) -> Mapping[str, ClusterView]:
        """Clusters as there are, each of its own kind."""
        return {
            "no node": ClusterView(()),
            "one node": ClusterView((self._node(0, cpu=16.0, gpu=4),)),
            "a node without anything free": ClusterView((NodeView("node-0", cpu=0.0),)),
            "equal nodes": ClusterView(tuple(self._node(number, cpu=2.0, gpu=1) for number in range(9))),
            "nodes of different sizes": ClusterView(tuple(self._node(n, cpu=0.5 + 3.0 * n, gpu=n) for n in range(4))),
            "no GPUs": ClusterView(tuple(self._node(number, cpu=8.0, gpu=0) for number in range(3))),
            "no labels": ClusterView(tuple(NodeView(f"node-{number}", cpu=8.0, gpu=2) for number in range(3))),
            "each node with labels of its own": ClusterView(
                tuple(NodeView(f"node-{n}", cpu=8.0, gpu=2, labels={name: f"own-{n}"}) for n, name in enumerate("abc"))
            ),
        }

    def _node(self, number: int, *, cpu: float, gpu: int) -> NodeView:
        labels = {name: values[number % len(values)] for name, values in self.labels.items()}
        return NodeView(f"node-{number}", cpu=cpu, gpu=gpu, custom={"disk": 16.0}, labels=labels)

    # --------------------------------------------------------------------------------------------------------- drawn

    def requests(self) -> st.SearchStrategy[PlacementRequest]:
        """Requests of all roles, most of them small. Replace it where a strategy refuses nearly all of them."""
        return strategies.requests(self.roles)

    def clusters(self) -> st.SearchStrategy[ClusterView]:
        """Clusters, most of them too small for all."""
        return strategies.clusters(self.labels)

    def situations(self) -> st.SearchStrategy[Situation]:
        """Requests and clusters, with what strategies before have done: placed some ranks, and demanded something."""

        @st.composite
        def drawn(draw: st.DrawFn) -> Situation:
            request, cluster = draw(self.requests()), draw(self.clusters())
            demands = draw(st.sampled_from(((), (), draw(strategies.constraints(self.roles, self.labels)))))
            some = tuple(role for role in request.roles if draw(st.integers(0, 3)) == 0)
            before = PACK.place(PlacementRequest(some), cluster, PlacementPlan(constraints=demands))
            assert before is not None
            return Situation(request, cluster, msgspec.structs.replace(before, unplaced=()))

        return drawn()

    def for_all(self, check: Callable[..., None], *drawn: st.SearchStrategy[Any]) -> None:
        """Call `check` with what is drawn."""
        strategies.for_all(check, *drawn, examples=self.examples)


def answered(planner: Planner, at: Situation) -> PlacementPlan | None:
    """The strategy's plan; None where it passes, refuses, or does what the tests of its answers find wrong."""
    try:
        found = planner.place(*at)
    except (RolemeshError, Refused):
        return None
    return found if isinstance(found, PlacementPlan) else None


def planned(
    planner: Planner, request: PlacementRequest, cluster: ClusterView, before: PlacementPlan | None = None
) -> PlacementPlan | None:
    """A job's plan: by the strategy, and then by `pack`. None where the strategy refuses, or is found to be wrong."""
    try:
        plan = ask(planner.name, planner.place, request, cluster, before or PlacementPlan())
        return ask("pack", PACK.place, request, cluster, plan)
    except (RolemeshError, Refused):
        return None


def multiplied(request: PlacementRequest, factors: tuple[int, ...]) -> Iterator[PlacementRequest]:
    """`request` with so many times its ranks, and with what else it may need: GPUs, shares of them, a resource."""
    for factor in factors:
        for change in ({}, {"gpu": 1.0}, {"gpu": 0.5}, {"cpu": 0.0}, {"custom": {"disk": 1.0}}):
            roles = (msgspec.structs.replace(r, world_size=r.world_size * factor, **change) for r in request.roles)
            yield msgspec.structs.replace(request, roles=tuple(roles))
