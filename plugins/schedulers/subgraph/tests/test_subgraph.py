"""Heavy edges stay on a node."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolemesh import PlacementPlan, PlacementRequest, RoleRequest
from rolemesh.api.plugin import NoOptions
from rolemesh.errors import PlacementError
from rolemesh.job.planning import plan_job
from rolemesh.placement import Assignment, Slot, Transfer, broken
from rolemesh.placement.nodes import parse_nodes
from rolemesh_pack import PackScheduler
from rolemesh_separation import SeparationOptions, SeparationScheduler
from rolemesh_subgraph import SubgraphOptions, SubgraphScheduler, crossing

MB = 1e6
SUBGRAPH = SubgraphScheduler(SubgraphOptions())
PACK = PackScheduler(NoOptions())


def place(cluster: str, request: PlacementRequest) -> PlacementPlan:
    return plan_job(request, parse_nodes(cluster), [("subgraph", SUBGRAPH.place)])


def packed(cluster: str, request: PlacementRequest) -> PlacementPlan:
    return plan_job(request, parse_nodes(cluster), [("pack", PACK.place)])


def test_ranks_that_give_each_other_most_are_on_one_node() -> None:
    roles = RoleRequest("rollout", 4, cpu=2), RoleRequest("reward", 4, cpu=1), RoleRequest("judge", 4, cpu=1)
    transfers = Transfer("rollout", "reward", bytes=1 * MB), Transfer("rollout", "judge", bytes=100 * MB)
    request = PlacementRequest(roles, transfers)
    plan = place("4x(cpu=3),4x(cpu=1)", request)
    for rank in range(4):
        assert plan.node_of("rollout", rank) == plan.node_of("judge", rank)
    assert crossing(request, plan).crossing == 1 * MB
    assert crossing(request, plan).total == 101 * MB


def test_it_crosses_fewer_bytes_than_packing_role_by_role() -> None:
    roles = (
        RoleRequest("data", 2, cpu=1),
        RoleRequest("rollout", 8, cpu=2, gpu=1),
        RoleRequest("reward", 8, cpu=2),
        RoleRequest("trainer", 8, cpu=2, gpu=1, group="collective"),
    )
    transfers = (
        Transfer("data", "rollout", bytes=1 * MB),
        Transfer("rollout", "reward", bytes=200 * MB),
        Transfer("reward", "trainer", bytes=200 * MB),
        Transfer("trainer", "rollout", "all", bytes=50 * MB),
    )
    request = PlacementRequest(roles, transfers)
    cluster = "4x(cpu=16,gpu=4)"
    ours, theirs = crossing(request, place(cluster, request)), crossing(request, packed(cluster, request))
    assert ours.total == theirs.total
    assert ours.crossing < theirs.crossing / 2


def test_a_cluster_goes_where_its_neighbours_are() -> None:
    first = RoleRequest("big", 1, cpu=6), RoleRequest("small", 2, cpu=1)
    request = PlacementRequest(first, (Transfer("big", "small", bytes=MB),))
    plan = place("(cpu=6),(cpu=7)", request)
    assert plan.node_of("small", 0) == plan.node_of("big", 0) == "node-1"


def test_sub_graphs_keep_to_what_was_demanded_before() -> None:
    request = PlacementRequest((RoleRequest("a", 2), RoleRequest("b", 2)), (Transfer("a", "b", bytes=MB),))
    apart = SeparationScheduler(SeparationOptions(apart=[["a", "b"]]))
    cluster = parse_nodes("4x(cpu=4)")
    plan = plan_job(request, cluster, [("separation", apart.place), ("subgraph", SUBGRAPH.place)])
    assert not plan.unplaced
    assert broken(plan, cluster) is None


def test_roles_that_are_not_asked_for_are_left_to_others_and_unknown_ones_refused() -> None:
    request = PlacementRequest((RoleRequest("a", 2), RoleRequest("b", 2)), (Transfer("a", "b", bytes=MB),))
    only = SubgraphScheduler(SubgraphOptions(roles=["a"]))
    plan = plan_job(request, parse_nodes("(cpu=9)"), [("subgraph", only.place), ("pack", PACK.place)])
    assert {a.rule.partition(":")[0] for a in plan.assignments if a.role == "b"} == {"pack"}
    with pytest.raises(PlacementError, match=r"no role 'c'(.|\n)*roles: a, b"):
        plan_job(request, parse_nodes("(cpu=9)"), [("s", SubgraphScheduler(SubgraphOptions(roles=["c"])).place)])


def test_ranks_of_roles_that_are_not_asked_for_are_left_even_where_others_of_them_have_a_place() -> None:
    request = PlacementRequest((RoleRequest("a", 2), RoleRequest("b", 2)), (Transfer("a", "b", bytes=MB),))
    before = PlacementPlan((Slot(0, "node-0", 1),), (Assignment("b", 0, 0),))
    plan = SubgraphScheduler(SubgraphOptions(roles=["a"])).place(request, parse_nodes("2x(cpu=2)"), before)
    assert sorted(a.ref for a in plan.assignments) == [("a", 0), ("a", 1), ("b", 0)]
    assert not plan.unplaced


@settings(deadline=None, max_examples=25)
@given(
    sizes=st.tuples(*[st.integers(1, 5)] * 3),
    cpus=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    weights=st.tuples(*[st.sampled_from([None, 1.0, 50.0])] * 3),
)
def test_every_rank_is_placed_or_refused_and_the_plan_is_the_same_each_time(
    sizes: tuple[int, ...], cpus: list[int], weights: tuple[float | None, ...]
) -> None:
    roles = tuple(RoleRequest(name, size) for name, size in zip("abc", sizes, strict=True))
    ends = (("a", "b"), ("b", "c"), ("c", "a"))
    request = PlacementRequest(roles, tuple(Transfer(*pair, bytes=w) for pair, w in zip(ends, weights, strict=True)))
    cluster = ",".join(f"(cpu={cpu})" for cpu in cpus)
    plan = place(cluster, request)
    assert plan == place(cluster, request)
    assert len(plan.assignments) == min(sum(sizes), sum(cpus))
    assert len(plan.assignments) + len(plan.unplaced) == sum(sizes)
    assert crossing(request, plan).crossing <= crossing(request, plan).total + 1e-6
