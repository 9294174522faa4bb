"""Roles of a group share slots; the others are left alone."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rolemesh import PlacementPlan, PlacementRequest, RoleRequest
from rolemesh.api.plugin import NoOptions
from rolemesh.errors import PlacementError, Problems
from rolemesh.job.planning import check_placed, plan_job
from rolemesh.placement.nodes import parse_nodes
from rolemesh_collocation import CollocationOptions, CollocationScheduler
from rolemesh_pack import PackScheduler


def place(groups: Any, nodes: str, *roles: RoleRequest) -> PlacementPlan:
    scheduler = CollocationScheduler(CollocationOptions(groups=groups))
    strategies = [("collocation", scheduler.place), ("pack", PackScheduler(NoOptions()).place)]
    return plan_job(PlacementRequest(roles), parse_nodes(nodes), strategies)


def slots(plan: PlacementPlan, role: str) -> list[int]:
    return [a.slot for a in sorted(plan.assignments, key=lambda a: a.rank) if a.role == role]


def test_rank_i_of_each_role_sits_on_slot_i_with_the_larger_need() -> None:
    rollout, trainer = RoleRequest("rollout", 2, cpu=2, gpu=1), RoleRequest("trainer", 2, cpu=4, gpu=0.5)
    plan = place([["rollout", "trainer"]], "(cpu=8,gpu=2)", rollout, trainer)
    assert slots(plan, "rollout") == slots(plan, "trainer") == [0, 1]
    assert [(slot.cpu, slot.gpu, slot.gpus) for slot in plan.slots] == [(4, 1, ((0, 1.0),)), (4, 1, ((1, 1.0),))]
    assert plan.assignments[0].rule == "collocation: rollout/0 + trainer/0 share a slot"


def test_a_smaller_role_is_spread_over_the_slots() -> None:
    plan = place([["rollout", "trainer"]], "(cpu=8)", RoleRequest("rollout", 2), RoleRequest("trainer", 4))
    assert slots(plan, "trainer") == [0, 1, 2, 3]
    assert slots(plan, "rollout") == [0, 2]


def test_other_roles_are_left_to_pack() -> None:
    plan = place([["a", "b"]], "(cpu=3)", RoleRequest("a", 1), RoleRequest("b", 1), RoleRequest("c", 2))
    assert slots(plan, "a") == slots(plan, "b") == [0]
    assert slots(plan, "c") == [1, 2]
    assert plan.assignments[-1].rule == "pack: first fit"


def test_a_group_with_a_collective_role_stays_on_one_node_if_one_has_room() -> None:
    trainer = RoleRequest("trainer", 4, group="collective")
    plan = place([["rollout", "trainer"]], "(cpu=2),(cpu=4)", RoleRequest("rollout", 4), trainer)
    assert {slot.node for slot in plan.slots} == {"node-1"}
    spread = place([["rollout", "trainer"]], "(cpu=1),(cpu=3)", RoleRequest("rollout", 4), trainer)
    assert [slot.node for slot in spread.slots] == ["node-1"] * 3 + ["node-0"]


def test_two_groups_have_slots_of_their_own() -> None:
    roles = [RoleRequest(name, 1) for name in "abcd"]
    plan = place([["a", "b"], ["c", "d"]], "(cpu=2)", *roles)
    assert slots(plan, "a") == slots(plan, "b") == [0]
    assert slots(plan, "c") == slots(plan, "d") == [1]


def test_a_group_that_does_not_fit_is_not_placed_apart() -> None:
    roles = RoleRequest("a", 2, cpu=2), RoleRequest("b", 2, gpu=1), RoleRequest("c", 1)
    plan = place([["a", "b"]], "(cpu=2,gpu=1),(cpu=1,gpu=1),(cpu=2)", *roles)
    assert {u.ref for u in plan.unplaced} == {("a", 1), ("b", 1)}
    assert slots(plan, "c") == [1]
    reason = r"rank 1 cannot be placed: .* share a slot, but no node meets all of this: needs cpu 2, .*; needs gpu 1"
    with pytest.raises(Problems, match=f"role a: {reason}"):
        check_placed(plan)


@pytest.mark.parametrize(
    ("groups", "roles", "problem"),
    [
        ([["a", "trainr"]], {"a": 1, "trainer": 1}, r"unknown role 'trainr'(.|\n)*did you mean 'trainer'\?"),
        ([["a", "b"]], {"a": 2, "b": 3}, r"'a' has 2 ranks, which cannot be spread evenly over the 3 slots"),
    ],
)
def test_groups_that_cannot_share_are_refused(groups: list[list[str]], roles: dict[str, int], problem: str) -> None:
    with pytest.raises(PlacementError, match=problem):
        place(groups, "(cpu=9)", *[RoleRequest(name, size) for name, size in roles.items()])


@pytest.mark.parametrize("groups", [[], [["a"]], [["a", "b"], ["b", "c"]], [["a", "a"]], "a"])
def test_options_that_make_no_sense_are_refused(groups: Any) -> None:
    with pytest.raises(ValidationError):
        CollocationOptions(groups=groups)


def test_two_ranks_of_one_role_sit_beside_each_four_of_another_on_one_node() -> None:
    roles = RoleRequest("trainer", 8, gpu=1, group="collective"), RoleRequest("rollout", 4, gpu=1)
    group = {"roles": ["trainer", "rollout"], "ratio": {"trainer": 4, "rollout": 2}}
    plan = place([group], "3x(cpu=8,gpu=4)", *roles)
    assert slots(plan, "trainer") == list(range(8))
    assert slots(plan, "rollout") == [0, 2, 4, 6]
    assert [slot.node for slot in plan.slots] == ["node-0"] * 4 + ["node-1"] * 4


def test_with_shares_all_run_at_once_so_cores_are_added_and_the_gpu_is_divided() -> None:
    roles = RoleRequest("trainer", 2, cpu=4, gpu=1), RoleRequest("rollout", 2, cpu=2, gpu=1)
    group = {"roles": ["trainer", "rollout"], "shares": {"trainer": 0.6, "rollout": 0.3}}
    plan = place([group], "(cpu=12,gpu=2)", *roles)
    assert [(slot.cpu, slot.gpu) for slot in plan.slots] == [(6, 1), (6, 1)]
    assert {(a.role, a.share) for a in plan.assignments} == {("trainer", 0.6), ("rollout", 0.3)}


@pytest.mark.parametrize(
    ("ratio", "sizes", "problem"),
    [
        ({"a": 4, "b": 3}, {"a": 8, "b": 6}, "'b' has 3 ranks, which cannot be spread evenly over the 4 slots of a"),
        ({"a": 4, "b": 2}, {"a": 8, "b": 2}, "a has 8, b has 2 ranks, which is no multiple of the ratio"),
        ({"a": 3, "b": 1}, {"a": 8, "b": 2}, "a has 8, b has 2 ranks, which is no multiple of the ratio"),
    ],
)
def test_ratios_that_do_not_divide_are_refused(ratio: dict[str, int], sizes: dict[str, int], problem: str) -> None:
    with pytest.raises(PlacementError, match=problem):
        place([{"roles": ["a", "b"], "ratio": ratio}], "(cpu=99)", *[RoleRequest(r, n) for r, n in sizes.items()])


@pytest.mark.parametrize(
    ("group", "problem"),
    [
        ({"roles": ["a", "b"], "shares": {"a": 0.7, "b": 0.4}}, "a 0.7 \\+ b 0.4 = 1.1, and a slot has 1"),
        ({"roles": ["a", "b"], "shares": {"a": 0.7}}, "shares has no value for 'b'"),
        ({"roles": ["a", "b"], "ratio": {"a": 1, "b": 1, "c": 1}}, "ratio names 'c', which is not in the group"),
    ],
)
def test_shares_and_ratios_are_of_the_groups_roles_and_at_most_one(group: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        CollocationOptions(groups=[group])
