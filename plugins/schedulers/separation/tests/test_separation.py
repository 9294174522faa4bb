"""The constraint of separation holds for every plan of the strategies after it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rolemesh import PlacementPlan, PlacementRequest, RoleRequest
from rolemesh.api.plugin import NoOptions
from rolemesh.errors import PlacementError, Problems
from rolemesh.job.planning import check_placed, plan_job
from rolemesh.placement import Strategy, broken
from rolemesh.placement.nodes import parse_nodes
from rolemesh_collocation import CollocationOptions, CollocationScheduler
from rolemesh_durable.protocol.master.replan import replan
from rolemesh_pack import PackScheduler
from rolemesh_separation import SeparationOptions, SeparationScheduler

PACK = ("pack", PackScheduler(NoOptions()).place)
ROLLOUT, TRAINER = RoleRequest("rollout", 3), RoleRequest("trainer", 2, group="collective")


def separation(**options: Any) -> SeparationScheduler:
    return SeparationScheduler(SeparationOptions(**options))


def place(cluster: str, /, *roles: RoleRequest, **options: Any) -> PlacementPlan:
    return plan_job(PlacementRequest(roles), parse_nodes(cluster), [("separation", separation(**options).place), PACK])


def nodes_of(plan: PlacementPlan, role: str) -> set[str]:
    return {plan.slots[a.slot].node for a in plan.assignments if a.role == role}


def test_roles_that_are_apart_share_no_node() -> None:
    plan = place("2x(cpu=8)", ROLLOUT, TRAINER, apart=[["rollout", "trainer"]])
    assert (nodes_of(plan, "trainer"), nodes_of(plan, "rollout")) == ({"node-0"}, {"node-1"})


def test_roles_that_are_apart_by_rack_share_no_rack() -> None:
    nodes = "2x(cpu=8,label.rack=a),(cpu=8,label.rack=b),(cpu=8)"
    plan = place(nodes, ROLLOUT, TRAINER, apart=[{"groups": ["rollout", "trainer"], "by": "label.rack"}])
    assert nodes_of(plan, "trainer") == {"node-0"}
    assert nodes_of(plan, "rollout") == {"node-2"}


def test_roles_that_are_apart_by_device_do_not_share_one_though_there_is_room_on_it() -> None:
    a, b = RoleRequest("a", 1, cpu=1, gpu=0.5), RoleRequest("b", 2, cpu=1, gpu=0.5)
    together = place("(cpu=8,gpu=2)", a, b, spread={"a": "node"})
    assert {slot.gpus[0][0] for slot in together.slots[:2]} == {0}
    plan = place("(cpu=8,gpu=2)", a, b, apart=[{"groups": ["a", "b"], "by": "device"}])
    assert [slot.gpus for slot in plan.slots] == [((0, 0.5),), ((1, 0.5),), ((1, 0.5),)]


def test_ranks_are_spread() -> None:
    plan = place("4x(cpu=8)", ROLLOUT, spread={"rollout": "node"})
    assert len(nodes_of(plan, "rollout")) == 3
    nodes = "2x(cpu=8,label.rack=a),2x(cpu=8,label.rack=b)"
    plan = place(nodes, RoleRequest("rollout", 4), spread={"rollout": {"over": "label.rack", "most": 2}})
    assert [plan.slots[a.slot].node for a in plan.assignments] == ["node-0", "node-0", "node-2", "node-2"]


def test_roles_go_to_nodes_with_their_labels() -> None:
    plan = place("(cpu=8),(cpu=8,label.gpu=h100)", ROLLOUT, TRAINER, nodes={"trainer": {"gpu": "h100"}})
    assert (nodes_of(plan, "trainer"), nodes_of(plan, "rollout")) == ({"node-1"}, {"node-0"})


def test_contradictory_constraints_are_reported_with_their_numbers_and_nothing_else() -> None:
    plan = place("2x(cpu=8)", ROLLOUT, TRAINER, spread={"rollout": "node"}, nodes={}, apart=[])
    with pytest.raises(PlacementError, match="rank 2 cannot be placed: separation allows 1 rank of rollout per node"):
        check_placed(plan)
    plan = place("(cpu=8),(cpu=2)", RoleRequest("rollout", 1, cpu=4), TRAINER, apart=[["rollout", "trainer"]])
    assert nodes_of(plan, "trainer") == {"node-0"}
    with pytest.raises(PlacementError) as caught:
        check_placed(plan)
    assert "needs cpu 4, the most that is free on a node is 6 (node-0)" in str(caught.value)
    assert "separation keeps rollout apart from trainer (by node)" in str(caught.value)
    assert "gpu" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"apart": [["rollout", "trainr"]]}, ("no role 'trainr'", "did you mean 'trainer'")),
        ({"spread": {"rolout": "node"}}, ("no role 'rolout'", "did you mean 'rollout'")),
        ({"spread": {"rollout": "label.rak"}}, ("no node has a label 'rak'", "did you mean 'rack'")),
        ({"nodes": {"trainer": {"rack": "z"}}}, ("rack=z", "rack is one of a, b")),
        ({"nodes": {"trainer": {"zone": "z"}}}, ("no node has a label 'zone'",)),
    ],
)
def test_roles_and_labels_that_do_not_exist_are_refused(options: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(PlacementError) as caught:
        place("(cpu=8,label.rack=a),(cpu=8,label.rack=b)", ROLLOUT, TRAINER, **options)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "demands nothing"),
        ({"apart": [["a"]]}, "at least 2"),
        ({"apart": [[["a", "b"], ["b"]]]}, "'b' is in two groups"),
        ({"spread": {"a": "host"}}, "'host' is none of node, device, label.NAME"),
        ({"spread": {"a": "device"}}, "spread them over node"),
        ({"spread": {"a": {"over": "node", "most": 0}}}, "greater than 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        SeparationOptions(**options)


def test_strategies_that_contradict_each_other_are_both_named() -> None:
    collocation = CollocationScheduler(CollocationOptions(groups=[["rollout", "trainer"]]))
    apart = separation(apart=[["rollout", "trainer"]])
    request, cluster = (
        PlacementRequest((RoleRequest("rollout", 2), RoleRequest("trainer", 2))),
        parse_nodes("4x(cpu=8)"),
    )
    plan = plan_job(request, cluster, [("separation", apart.place), ("collocation", collocation.place), PACK])
    with pytest.raises(Problems, match="separation keeps rollout apart from trainer") as caught:
        check_placed(plan)
    assert "collocation" in str(caught.value)
    with pytest.raises(PlacementError, match=r"'separation' demands.*collocation") as error:
        plan_job(request, cluster, [("collocation", collocation.place), ("separation", apart.place)])
    assert "rollout apart from trainer" in str(error.value)


def test_collocation_fills_what_separation_leaves() -> None:
    collocation = CollocationScheduler(CollocationOptions(groups=[["rollout", "trainer"]]))
    apart = separation(apart=[["judge", ["rollout", "trainer"]]], spread={"rollout": "node"})
    roles = RoleRequest("judge", 1), RoleRequest("rollout", 2), RoleRequest("trainer", 2)
    strategies = [("separation", apart.place), ("collocation", collocation.place), PACK]
    plan = plan_job(PlacementRequest(roles), parse_nodes("3x(cpu=8)"), strategies)
    assert nodes_of(plan, "rollout") == nodes_of(plan, "trainer") == {"node-0", "node-1"}
    assert nodes_of(plan, "judge") == {"node-2"}


def test_the_constraints_hold_after_the_loss_of_a_node() -> None:
    roles = (RoleRequest("rollout", 2), RoleRequest("trainer", 1))
    apart, pack = separation(apart=[["rollout", "trainer"]]), PackScheduler(NoOptions())
    request, cluster = PlacementRequest(roles), parse_nodes("3x(cpu=4)")
    plan = plan_job(request, cluster, [("separation", apart.place), PACK])
    strategies = [Strategy("separation", apart.place), Strategy("pack", pack.place, pack.replace)]
    (lost,) = nodes_of(plan, "trainer")
    after = replan(request, plan, (lost,), cluster, strategies)
    assert not after.unplaced
    assert nodes_of(after, "trainer").isdisjoint(nodes_of(after, "rollout"))
    none_left = replan(request, plan, (lost, "node-2"), cluster, strategies)
    assert [u.ref for u in none_left.unplaced] == [("trainer", 0)]


@given(
    sizes=st.tuples(*[st.integers(1, 4)] * 3),
    cpus=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    racks=st.lists(st.sampled_from("ab"), min_size=5, max_size=5),
    by=st.sampled_from(["node", "label.rack"]),
    most=st.integers(1, 3),
)
def test_no_plan_breaks_a_constraint(
    sizes: tuple[int, ...], cpus: list[int], racks: list[str], by: str, most: int
) -> None:
    nodes = ",".join(f"(cpu={cpu},label.rack={rack})" for cpu, rack in zip(cpus, racks, strict=False))
    roles = [RoleRequest(name, size) for name, size in zip("abc", sizes, strict=True)]
    try:
        plan = place(
            nodes, *roles, apart=[{"groups": ["a", ["b"]], "by": by}], spread={"c": {"over": by, "most": most}}
        )
    except PlacementError as error:
        pytest.fail(str(error))
    assert broken(plan, parse_nodes(nodes)) is None
    placed = {a.ref for a in plan.assignments} | {u.ref for u in plan.unplaced}
    assert len(placed) == sum(sizes)
