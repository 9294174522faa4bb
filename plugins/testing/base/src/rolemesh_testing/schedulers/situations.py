"""Fixtures for the tests of a placement strategy: the strategy, requests and clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, ClassVar

import msgspec
import pytest
from pydantic import BaseModel

from rolemesh.api.cluster import ClusterView, NodeView
from rolemesh.api.plugin import NoOptions
from rolemesh.errors import RolemeshError
from rolemesh.placement import PlacementPlan, PlacementRequest, RoleRequest, Strategy, Transfer, Unplaced
from rolemesh.placement.validation import ask
from rolemesh.plugins.discovery import PluginRecord
from rolemesh_pack import PackScheduler
from rolemesh_testing.conformance import PluginConformance, needed
from rolemesh_testing.pools import Pool, pooled
from rolemesh_testing.schedulers import jobs
from rolemesh_testing.schedulers.planner import Case, Planner, Refused
from rolemesh_testing.subprocess_probe import Subject

__all__ = ["PACK", "PlacementConformance", "Situation", "answered", "multiplied", "planned"]

_PACK = PackScheduler(NoOptions())
PACK = Strategy("pack", _PACK.place, _PACK.replace)
"""The strategy that places the ranks without a place at the end."""


class Situation(msgspec.Struct, frozen=True):
    """The input of a strategy. `before` is the plan of earlier strategies, `dice` two numbers from 0 to 11."""

    request: PlacementRequest
    cluster: ClusterView
    before: PlacementPlan = PlacementPlan()
    dice: tuple[int, int] = (0, 0)

    @property
    def case(self) -> Case:
        """The question to `Planner.answer`."""
        return Case(self.request, self.cluster, self.before)


class PlacementConformance(PluginConformance):
    """Fixtures of `SchedulerConformance`. An author may replace `roles`, `labels`, `asked` and `roomy`."""

    kind = "schedulers"
    roles: ClassVar[tuple[str, ...]] = ("actor", "critic", "data")
    """The roles of every request. Set it if the strategy's options name roles."""
    labels: ClassVar[Mapping[str, tuple[str, ...]]] = {"rack": ("a", "b", "c"), "zone": ("north", "south")}
    """The labels of nodes with their values. Set it if the strategy's options name labels."""
    examples: ClassVar[int] = 60
    """Number of drawn requests and clusters."""
    simplify: ClassVar[bool] = True
    """True to search for the simplest request and cluster when a test fails, which takes seconds."""

    @pytest.fixture
    def asked(self) -> PlacementRequest:
        """A request that the strategy must plan if the cluster is large enough: the whole job, two ranks of each role.

        Tests also use multiples of it.
        """
        first, *others = self.roles
        return PlacementRequest(
            (RoleRequest(first, 2, group="collective"), *(RoleRequest(role, 2) for role in others)),
            tuple(Transfer(src, dst, "aligned", 1e6) for src, dst in zip(self.roles, self.roles[1:], strict=False)),
        )

    @pytest.fixture
    def roomy(self) -> ClusterView:
        """A cluster that is large enough even if one node is lost."""
        return ClusterView(tuple(self._node(number, cpu=64.0, gpu=8) for number in range(6)))

    @pytest.fixture
    def planner(
        self, record: PluginRecord, cls: type[Any], checked_options: BaseModel, request: pytest.FixtureRequest
    ) -> Planner:
        """The strategy."""
        return needed(request, "it cannot be created", lambda: Planner(record, cls, checked_options))

    @pytest.fixture
    def subject(self, record: PluginRecord) -> Subject:
        """The strategy, for another process."""
        return Subject(record, dict(self.options), "")

    @pytest.fixture
    def shapes(self) -> Mapping[str, ClusterView]:
        """Clusters of different kinds."""
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

    def request(self, random: Random) -> PlacementRequest:
        """A drawn job of all roles. Replace it if the strategy would refuse nearly all of them."""
        return jobs.request(random, self.roles)

    def cluster(self, random: Random) -> ClusterView:
        """A drawn cluster, which may be too small."""
        return jobs.cluster(random, self.labels)

    def situation(self, random: Random) -> Situation:
        """A drawn job and cluster. Earlier strategies have placed some ranks and added constraints."""
        request, cluster = self.request(random), self.cluster(random)
        demands = random.choice(((), jobs.constraints(random, self.roles, self.labels)))
        some = random.choice(("none", "none", "whole roles", "ranks"))
        left = tuple(
            Unplaced(role.role, rank, "not yet")
            for role in request.roles
            for whole in [random.choice((True, False))]
            for rank in range(role.world_size)
            if some == "none" or not (whole if some == "whole roles" else random.choice((True, False)))
        )
        before = PACK.place(request, cluster, PlacementPlan(unplaced=left, constraints=demands))
        assert before is not None
        dice = random.randint(0, 11), random.randint(0, 11)
        return Situation(request, cluster, msgspec.structs.replace(before, unplaced=()), dice)

    def for_all(self, check: Callable[[Situation], None]) -> None:
        """Call `check` with the drawn inputs. Raise its exception for the simplest input found."""
        self.pool().check(check, simplify=self.simplify)

    def pool(self) -> Pool[Situation]:
        """The drawn inputs, the same for all tests of the class."""
        cls = type(self)
        key = cls.situation, cls.request, cls.cluster, self.roles, tuple(self.labels.items())
        return pooled(Situation, self.situation, self.examples, *key)


def answered(planner: Planner, at: Situation) -> PlacementPlan | None:
    """Return the strategy's plan; None if it passes, refuses, or fails in a way that other tests report."""
    try:
        found = planner.place(at.request, at.cluster, at.before)
    except (RolemeshError, Refused):
        return None
    return found if isinstance(found, PlacementPlan) else None


def planned(
    planner: Planner, request: PlacementRequest, cluster: ClusterView, before: PlacementPlan | None = None
) -> PlacementPlan | None:
    """Return a job's plan by the strategy and then `pack`; None if the strategy refuses, or fails in other tests."""
    try:
        plan = ask(planner.name, planner.place, request, cluster, before or PlacementPlan())
        return ask("pack", PACK.place, request, cluster, plan)
    except (RolemeshError, Refused):
        return None


def multiplied(request: PlacementRequest, factors: tuple[int, ...]) -> Iterator[PlacementRequest]:
    """Return `request` with a multiple of its ranks, and with more needs: GPUs, shares of them, a resource."""
    for factor in factors:
        for change in ({}, {"gpu": 1.0}, {"gpu": 0.5}, {"cpu": 0.0}, {"custom": {"disk": 1.0}}):
            roles = (msgspec.structs.replace(r, world_size=r.world_size * factor, **change) for r in request.roles)
            yield msgspec.structs.replace(request, roles=tuple(roles))
