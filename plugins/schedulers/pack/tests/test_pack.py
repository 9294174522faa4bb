"""The strategy `pack`: its decisions, and its reasons when it finds no place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolemesh.api.cluster import ClusterView, NodeView
from rolemesh.api.plugin import NoOptions
from rolemesh.errors import PlacementError, Problems
from rolemesh.job.planning import check_placed, plan_job
from rolemesh.placement import Assignment, Capacity, PlacementPlan, PlacementRequest, RoleRequest, Slot, Transfer
from rolemesh.placement.nodes import parse_nodes
from rolemesh_pack import PackScheduler

PACK = PackScheduler(NoOptions())


def pack(nodes: str, *roles: RoleRequest, transfers: tuple[Transfer, ...] = ()) -> PlacementPlan:
    return plan_job(PlacementRequest(roles, transfers), parse_nodes(nodes), [("pack", PACK.place)])


def where(plan: PlacementPlan, role: str) -> list[str]:
    return [plan.slots[a.slot].node for a in sorted(plan.assignments, key=lambda a: a.rank) if a.role == role]


def test_ranks_fill_the_nodes_in_order_each_on_its_own_slot() -> None:
    plan = pack("2x(cpu=2)", RoleRequest("worker", 3))
    assert where(plan, "worker") == ["node-0", "node-0", "node-1"]
    assert len({a.slot for a in plan.assignments}) == 3
    assert plan.bundles() == {"node-0": {"cpu": 2, "gpu": 0}, "node-1": {"cpu": 1, "gpu": 0}}
    assert {a.rule for a in plan.assignments} == {"pack: first fit"}


def test_a_collective_role_goes_to_the_first_node_that_takes_all_of_it() -> None:
    trainer = RoleRequest("trainer", 4, group="collective")
    plan = pack("(cpu=3),2x(cpu=4)", RoleRequest("data", 2), trainer)
    assert where(plan, "trainer") == ["node-1"] * 4
    assert where(plan, "data") == ["node-0"] * 2


def test_a_collective_role_that_no_node_takes_spreads_over_as_few_as_possible() -> None:
    plan = pack("(cpu=1),(cpu=2),(cpu=3)", RoleRequest("trainer", 5, group="collective"))
    assert where(plan, "trainer") == ["node-2"] * 3 + ["node-1"] * 2
    assert "as few nodes as possible" in plan.assignments[0].rule


def test_ranks_go_beside_those_they_talk_to() -> None:
    rollout, reward = RoleRequest("rollout", 4, cpu=1, gpu=1), RoleRequest("reward", 2, cpu=1)
    plan = pack("4x(cpu=8,gpu=1)", rollout, reward, transfers=(Transfer("rollout", "reward"),))
    assert where(plan, "rollout") == [f"node-{i}" for i in range(4)]
    assert where(plan, "reward") == ["node-0", "node-2"]
    assert plan.assignments[-1].rule == "pack: beside rollout/2"


def test_ranks_without_needs_fit_on_a_full_cluster() -> None:
    plan = pack("(cpu=1)", RoleRequest("worker", 1), RoleRequest("idle", 3, cpu=0))
    assert not plan.unplaced
    assert where(plan, "idle") == ["node-0"] * 3


def test_missing_resources_are_reported_in_numbers_for_each_role() -> None:
    plan = pack("(cpu=2),(cpu=1)", RoleRequest("trainer", 1, cpu=4), RoleRequest("rollout", 5))
    assert [u.ref for u in plan.unplaced] == [("trainer", 0), ("rollout", 3), ("rollout", 4)]
    with pytest.raises(Problems) as caught:
        check_placed(plan)
    trainer, rollout = caught.value.errors
    assert str(trainer).startswith(
        "role trainer: rank 0 cannot be placed: needs cpu 4, the most that is free on a node is 2 (node-0); "
        "the cluster is short of 6 cpu"
    )
    assert "2 ranks (3, 4) cannot be placed: needs cpu 1, the most that is free on a node is 0" in str(rollout)
    assert "roles.rollout.world_size" in str(rollout)


def test_scattered_resources_are_called_so() -> None:
    with pytest.raises(PlacementError, match="2 are free in all, scattered"):
        check_placed(pack("2x(cpu=1)", RoleRequest("big", 1, cpu=2)))
    with pytest.raises(PlacementError, match=r"needs gpu 1.*is short of 1 gpu"):
        check_placed(pack("(cpu=9)", RoleRequest("big", 1, gpu=1)))
    with pytest.raises(PlacementError, match="no nodes"):
        check_placed(plan_job(PlacementRequest((RoleRequest("a", 1),)), ClusterView(()), [("pack", PACK.place)]))


def test_slots_of_a_lost_node_move_with_everybody_on_them() -> None:
    cluster = parse_nodes("3x(cpu=2,gpu=1)")
    slots = (Slot(0, "node-0", 1), Slot(1, "node-1", 2, 1, ((0, 1.0),)))
    plan = PlacementPlan(slots, (Assignment("a", 0, 0), Assignment("b", 0, 1), Assignment("c", 0, 1)))
    moved = PACK.replace(plan, ("node-1",), cluster)
    assert moved is not None
    assert [slot.node for slot in moved.slots] == ["node-0", "node-2"]
    assert [a.slot for a in moved.assignments] == [0, 1, 1]
    assert moved.assignments[0] == plan.assignments[0]
    assert "node-1 is lost" in moved.assignments[2].rule


def test_the_slots_of_a_lost_node_may_find_no_place() -> None:
    plan = PlacementPlan((Slot(0, "node-0", 2), Slot(1, "node-1", 2)), (Assignment("a", 0, 0), Assignment("a", 1, 1)))
    assert PACK.replace(plan, ("node-1",), parse_nodes("2x(cpu=2)")) is None


@st.composite
def problems(draw: st.DrawFn) -> tuple[PlacementRequest, ClusterView]:
    amounts: Any = st.sampled_from([0, 0.5, 1, 2])
    roles = [
        RoleRequest(
            name,
            draw(st.integers(1, 4)),
            cpu=draw(amounts),
            gpu=draw(st.sampled_from([0, 0, 0.5, 1])),
            group=draw(st.sampled_from(["independent", "collective"])),
        )
        for name in "abc"[: draw(st.integers(1, 3))]
    ]
    nodes = [
        NodeView(f"node-{i}", cpu=draw(st.integers(0, 6)), gpu=draw(st.integers(0, 2)))
        for i in range(draw(st.integers(0, 4)))
    ]
    transfers = (Transfer("a", "b"), Transfer("b", "c"))[: len(roles) - 1]
    return PlacementRequest(tuple(roles), transfers), ClusterView(tuple(nodes))


@given(problems())
def test_every_rank_is_placed_once_within_capacity_or_told_missing(case: tuple[PlacementRequest, ClusterView]) -> None:
    request, cluster = case
    plan = plan_job(request, cluster, [("pack", PACK.place)])
    ranks = [(role.role, rank) for role in request.roles for rank in range(role.world_size)]
    assert sorted([a.ref for a in plan.assignments] + [u.ref for u in plan.unplaced]) == ranks
    left = {node: Capacity(cluster, plan.slots).free(node) for node in (each.id for each in cluster.nodes)}
    assert all(amount >= -1e-6 for free in left.values() for amount in free.values())
    assert all("needs" in u.reason or "no nodes" in u.reason for u in plan.unplaced)
    if plan.unplaced:
        first = request.role(plan.unplaced[0].role)
        whole = [amounts for amounts in left.values() if amounts["cpu"] >= first.cpu and not first.gpu]
        assert not whole, "a rank was left although a node has room for it"
