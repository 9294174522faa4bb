"""Tests that ranks use as many nodes as possible, and few if there is no other room."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from rolemesh import ClusterView, NodeView, PlacementPlan, PlacementRequest, RoleRequest
from rolemesh.errors import PlacementError
from rolemesh_testing import SchedulerConformance

from rolemesh_fieldkit.spread import Spread


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
