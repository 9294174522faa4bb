"""New places of ranks after the loss of nodes: only ranks that must move do, and never to a lost node."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolemesh.api.cluster import ClusterView
from rolemesh.api.plugin import NoOptions
from rolemesh.errors import PlacementError
from rolemesh.job.planning import plan_job
from rolemesh.placement import (
    Assignment,
    Capacity,
    PlacementPlan,
    PlacementRequest,
    RoleRequest,
    Slot,
    Strategy,
    Unplaced,
)
from rolemesh.placement.nodes import parse_nodes
from rolemesh_durable.protocol.master.replan import replan
from rolemesh_pack import PackScheduler

pack = PackScheduler(NoOptions())
PACK = Strategy("pack", pack.place, pack.replace)
ONLY_PLACES = Strategy("only-places", pack.place)


def without(cluster: ClusterView, *lost: str) -> ClusterView:
    return ClusterView(tuple(node for node in cluster.nodes if node.id not in lost))


def homes(plan: PlacementPlan) -> dict[tuple[str, int], str]:
    return {a.ref: plan.slot(a.slot).node for a in plan.assignments}


def planned(request: PlacementRequest, cluster: ClusterView) -> PlacementPlan:
    return plan_job(request, cluster, [("pack", pack.place)])


@pytest.mark.parametrize("strategies", [(PACK,), (ONLY_PLACES,)])
def test_ranks_of_a_lost_node_move_and_all_others_stay(strategies: tuple[Strategy, ...]) -> None:
    request = PlacementRequest((RoleRequest("a", 4),))
    cluster = parse_nodes("3x(cpu=2)")
    after = replan(request, planned(request, cluster), ("node-0",), without(cluster, "node-0"), strategies)
    assert homes(after) == {("a", 0): "node-2", ("a", 1): "node-2", ("a", 2): "node-1", ("a", 3): "node-1"}
    assert not after.unplaced


def test_a_lost_node_that_the_cluster_still_shows_is_not_used() -> None:
    request = PlacementRequest((RoleRequest("a", 1),))
    cluster = parse_nodes("2x(cpu=1)")
    after = replan(request, planned(request, cluster), ("node-0",), cluster, (PACK,))
    assert homes(after) == {("a", 0): "node-1"}


def test_a_node_that_is_gone_without_being_called_lost_is_lost() -> None:
    request = PlacementRequest((RoleRequest("a", 1),))
    cluster = parse_nodes("2x(cpu=1)")
    after = replan(request, planned(request, cluster), (), without(cluster, "node-0"), (PACK,))
    assert homes(after) == {("a", 0): "node-1"}


def test_ranks_that_share_a_slot_move_together() -> None:
    request = PlacementRequest((RoleRequest("a", 1), RoleRequest("b", 1)))
    plan = PlacementPlan((Slot(0, "node-0", 1),), (Assignment("a", 0, 0), Assignment("b", 0, 0)))
    after = replan(request, plan, ("node-0",), parse_nodes("2x(cpu=1)"), (PACK,))
    assert after.slots == (Slot(0, "node-1", 1),)
    assert {a.slot for a in after.assignments} == {0}


def test_without_room_the_reason_is_reported_and_living_ranks_stay() -> None:
    request = PlacementRequest((RoleRequest("a", 2),))
    cluster = parse_nodes("2x(cpu=1)")
    after = replan(request, planned(request, cluster), ("node-1",), without(cluster, "node-1"), (PACK,))
    assert homes(after) == {("a", 0): "node-0"}
    (homeless,) = after.unplaced
    assert homeless.ref == ("a", 1)
    assert "needs cpu 1" in homeless.reason


def test_unplaced_ranks_get_places_when_a_node_joins() -> None:
    request = PlacementRequest((RoleRequest("a", 2),))
    cluster = parse_nodes("3x(cpu=1)")
    before = replan(request, planned(request, without(cluster, "node-2")), ("node-1",), parse_nodes("(cpu=1)"), (PACK,))
    after = replan(request, before, ("node-1",), without(cluster, "node-1"), (PACK,))
    assert homes(after) == {("a", 0): "node-0", ("a", 1): "node-2"}
    assert not after.unplaced


def test_a_strategy_that_plans_whole_roles_only_leaves_it_to_the_next() -> None:
    def refuse(request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        raise PlacementError("picky: a is placed already")

    request = PlacementRequest((RoleRequest("a", 2),))
    cluster = parse_nodes("2x(cpu=1)")
    plan = planned(request, cluster)
    picky = Strategy("picky", refuse)
    moved = replan(request, plan, ("node-1",), parse_nodes("(cpu=2)"), (picky, PACK))
    assert homes(moved) == {("a", 0): "node-0", ("a", 1): "node-0"}
    alone = replan(request, plan, ("node-1",), parse_nodes("(cpu=2)"), (picky,))
    assert alone.unplaced == (Unplaced("a", 1, "picky: a is placed already"),)


@pytest.mark.parametrize("wrong", ["evicts", "overcommits", "keeps", "renumbers"])
def test_a_replace_that_is_not_possible_is_passed_over(wrong: str) -> None:
    def replace(plan: PlacementPlan, lost: tuple[str, ...], cluster: ClusterView) -> PlacementPlan:
        moved = tuple(msgspec.structs.replace(slot, node="node-1") for slot in plan.slots)
        match wrong:
            case "evicts":
                return msgspec.structs.replace(plan, slots=moved)
            case "overcommits":
                last = msgspec.structs.replace(plan.slots[-1], node="node-1", cpu=9.0)
                return msgspec.structs.replace(plan, slots=(*plan.slots[:-1], last))
            case "renumbers":
                return msgspec.structs.replace(plan, slots=plan.slots[::-1])
        return plan

    request = PlacementRequest((RoleRequest("a", 3),))
    cluster = parse_nodes("(cpu=1),2x(cpu=2)")
    plan = planned(request, cluster)
    assert homes(plan)["a", 0] == "node-0"
    left = without(cluster, "node-0")
    after = replan(request, plan, ("node-0",), left, (Strategy("wrong", lambda r, c, p: None, replace), ONLY_PLACES))
    assert homes(after) == {("a", 0): "node-2", ("a", 1): "node-1", ("a", 2): "node-1"}


@st.composite
def losses(draw: st.DrawFn) -> tuple[PlacementRequest, PlacementPlan, tuple[str, ...], ClusterView, ClusterView]:
    group = st.sampled_from(["independent", "collective"])
    sizes = draw(
        st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0.0, 0.5, 1.0]), group), min_size=1, max_size=4)
    )
    gpus = draw(st.lists(st.sampled_from([0.0, 0.0, 0.5, 1.0]), min_size=4, max_size=4))
    roles = tuple(RoleRequest(f"r{i}", n, cpu, gpus[i], group=g) for i, (n, cpu, g) in enumerate(sizes))
    cluster = parse_nodes(f"{draw(st.integers(1, 5))}x(cpu={draw(st.integers(1, 6))},gpu={draw(st.integers(0, 2))})")
    request = PlacementRequest(roles)
    names = [node.id for node in cluster.nodes]
    lost = tuple(draw(st.lists(st.sampled_from(names), unique=True)))
    seen = without(cluster, *draw(st.lists(st.sampled_from(names), unique=True)))
    return request, planned(request, cluster), lost, cluster, seen


@given(losses(), st.sampled_from([(PACK,), (ONLY_PLACES,), (Strategy("passes", lambda r, c, p: None), PACK)]))
def test_after_any_loss_the_new_plan_is_possible_and_moves_no_rank_without_need(
    case: tuple[PlacementRequest, PlacementPlan, tuple[str, ...], ClusterView, ClusterView],
    strategies: tuple[Strategy, ...],
) -> None:
    request, plan, lost, _, seen = case
    after = replan(request, plan, lost, seen, strategies)
    usable = {node.id for node in seen.nodes} - set(lost)
    ranks = {(role.role, rank) for role in request.roles for rank in range(role.world_size)}
    now, before = homes(after), homes(plan)

    assert len(now) == len(after.assignments), "no rank has two places"
    assert now.keys() | {u.ref for u in after.unplaced} == ranks
    assert not now.keys() & {u.ref for u in after.unplaced}
    assert {slot.node for slot in after.slots} <= usable
    assert [slot.id for slot in after.slots] == list(range(len(after.slots)))
    for rank, node in before.items():
        if node in usable:
            assert now[rank] == node
    capacity = Capacity(without(seen, *lost), after.slots)
    assert all(amount > -1e-6 for node in capacity.nodes for amount in capacity.free(node).values())
    again = replan(request, after, (), without(seen, *lost), strategies)
    assert homes(again) == now, "what has been settled is not moved again"
