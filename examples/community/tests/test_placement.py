"""Tests that `spread` uses as many nodes as there is room on, and that `even` limits all strategies."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest
from rolemesh import ClusterView, NodeView, PlacementPlan, PlacementRequest, RoleRequest
from rolemesh.api.plugin import NoOptions
from rolemesh.errors import PlacementError
from rolemesh.job.planning import plan_job
from rolemesh_pack import PackScheduler
from rolemesh_testing import SchedulerConformance

from rolemesh_fieldkit.placement import Even, Spread


class TestSpread(SchedulerConformance):
    plugin = "spread"
    options: ClassVar[dict[str, Any]] = {"roles": ["critic"]}
    bad_options = ({"roles": "critic"},)


def place(*cpus: float, roles: list[str] | None = None, **sizes: int) -> PlacementPlan:
    cluster = ClusterView(tuple(NodeView(f"n{number}", cpu=cpu) for number, cpu in enumerate(cpus)))
    request = PlacementRequest(tuple(RoleRequest(role, size) for role, size in sizes.items()))
    return ask(request, cluster, PlacementPlan(), roles or [])


def ask(request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan, roles: list[str]) -> PlacementPlan:
    made: Any = Spread(Spread.Options(roles=roles)).place(request=request, cluster=cluster, plan=plan)
    assert isinstance(made, PlacementPlan)
    return made


def nodes(plan: PlacementPlan, role: str) -> list[str]:
    return [plan.slots[a.slot].node for a in plan.assignments if a.role == role]


def test_ranks_are_dealt_out_over_the_nodes() -> None:
    assert nodes(place(8, 8, 8, a=5), "a") == ["n0", "n1", "n2", "n0", "n1"]


def test_a_full_node_is_left_out() -> None:
    assert nodes(place(1, 8, 1, a=5), "a") == ["n0", "n1", "n2", "n1", "n1"]


def test_ranks_without_room_are_left_to_later_strategies() -> None:
    plan = place(1, 1, a=3)
    assert plan.placed() == {("a", 0), ("a", 1)}
    assert not plan.unplaced


def test_only_the_named_roles_are_placed() -> None:
    assert place(8, 8, a=2, b=2, roles=["b"]).placed() == {("b", 0), ("b", 1)}


def test_nodes_that_have_ranks_of_the_role_already_come_last() -> None:
    cluster = ClusterView((NodeView("n0", cpu=8), NodeView("n1", cpu=8)))
    before = ask(PlacementRequest((RoleRequest("a", 1),)), cluster, PlacementPlan(), [])
    after = ask(PlacementRequest((RoleRequest("a", 3),)), cluster, before, [])
    assert nodes(after, "a") == ["n0", "n1", "n0"]


def test_an_unknown_role_is_an_error_with_its_place() -> None:
    with pytest.raises(PlacementError, match="there is no role 'c'") as found:
        place(8, a=1, roles=["a", "c"])
    assert found.value.where == "roles.1"


RACKS = ClusterView(tuple(NodeView(f"n{n}", cpu=4, labels={"rack": "ab"[n > 1]}) for n in range(3)))


class TestEven(SchedulerConformance):
    plugin = "even"
    bad_options = ({"most": 0}, {"domain": "rack"}, {"role": "a"})
    examples = 40


def placed(size: int, **options: Any) -> PlacementPlan:
    """Plan the job. The default strategy places the ranks that `even` leaves."""
    request = PlacementRequest((RoleRequest("a", size, cpu=1),))
    strategies = [("even", Even(Even.Options(**options)).place), ("pack", PackScheduler(NoOptions()).place)]
    return plan_job(request, RACKS, strategies)


def test_racks_differ_by_one_rank_though_one_has_twice_as_many_nodes() -> None:
    plan = placed(7, domain="label.rack")
    found = Counter(RACKS.node(plan.node_of("a", rank)).labels["rack"] for rank in range(7))
    assert sorted(found.values()) == [3, 4]
    assert plan.constraints[0].told() == "even lets label.rack differ by 1 ranks of a"


def test_the_constraint_is_named_if_racks_cannot_be_even() -> None:
    assert len(placed(12, most=4, domain="label.rack").placed()) == 12
    left = placed(12, domain="label.rack").unplaced
    assert len(left) == 3
    assert "even lets label.rack differ by 1 ranks of a" in str(left[0])


def test_a_role_that_there_is_not_is_an_error_with_its_place() -> None:
    with pytest.raises(PlacementError, match="there is no role 'b'") as raised:
        placed(1, roles=["a", "b"])
    assert raised.value.where == "placement.0.options.roles.1"
