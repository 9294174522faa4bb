"""Strategies in a row: each is held to what the ones before decided and to what the cluster has."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from rolemesh.api.cluster import ClusterView
from rolemesh.errors import PlacementError
from rolemesh.job.planning import plan_job
from rolemesh.placement import Assignment, PlacementPlan, PlacementRequest, RoleRequest, Slot, Unplaced
from rolemesh.placement.nodes import parse_nodes

REQUEST = PlacementRequest((RoleRequest("a", 2), RoleRequest("b", 1)))
NODES = parse_nodes("2x(cpu=2,gpu=1)")


def adds(*parts: Slot | Assignment | Unplaced) -> Callable[..., PlacementPlan]:
    """A strategy that adds these to the plan as they are."""

    def place(request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        return PlacementPlan(
            plan.slots + tuple(part for part in parts if isinstance(part, Slot)),
            plan.assignments + tuple(part for part in parts if isinstance(part, Assignment)),
            plan.unplaced + tuple(part for part in parts if isinstance(part, Unplaced)),
        )

    return place


def test_ranks_without_a_strategy_are_unplaced() -> None:
    mine = adds(Slot(0, "node-1", 1), Assignment("b", 0, 0, rule="mine"))
    plan = plan_job(REQUEST, NODES, [("mine", mine), ("passes", lambda request, cluster, plan: None)])
    assert [a.rule for a in plan.assignments] == ["mine"]
    assert [(each.role, each.rank, each.reason) for each in plan.unplaced] == [
        ("a", rank, "no strategy has placed it") for rank in range(2)
    ]


def test_a_verdict_stands_unless_a_later_strategy_finds_a_place() -> None:
    shy = ("shy", adds(Unplaced("b", 0, "too shy")))
    others = ("others", adds(Slot(0, "node-0", 1), Assignment("a", 0, 0), Assignment("a", 1, 0)))
    plan = plan_job(REQUEST, NODES, [shy, others])
    assert plan.unplaced == (Unplaced("b", 0, "too shy"),)
    assert plan.placed() == {("a", 0), ("a", 1)}
    bold = adds(Slot(0, "node-0", 1), Assignment("b", 0, 0))
    assert ("b", 0) in plan_job(REQUEST, NODES, [shy, ("bold", bold)]).placed()


def test_strategies_see_the_plan_so_far() -> None:
    seen: list[PlacementPlan] = []

    def look(request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> None:
        seen.append(plan)

    first = adds(Slot(0, "node-0", 1), Assignment("b", 0, 0))
    plan_job(REQUEST, NODES, [("first", first), ("look", look)])
    assert seen[0].placed() == {("b", 0)}
    assert not seen[0].unplaced


@pytest.mark.parametrize(
    ("strategy", "problem"),
    [
        (adds(Slot(0, "node-0", 3), Assignment("b", 0, 0)), "took 1 cpu more than node-0 has"),
        (adds(Slot(0, "node-9", 1)), "node 'node-9', which does not exist"),
        (adds(Slot(3, "node-0", 1)), "numbered its slots"),
        (adds(Slot(0, "node-0", 1), Assignment("b", 0, 7)), "on slot 7, which does not exist"),
        (adds(Slot(0, "node-0", 1), Assignment("b", 0, 0), Assignment("b", 0, 0)), "placed b/0 twice"),
        (adds(Slot(0, "node-0", 1), Assignment("c", 0, 0)), "unknown role 'c'; the job has a, b"),
        (adds(Slot(0, "node-0", 1), Assignment("a", 2, 0)), "placed a/2, but the role has 2 ranks"),
        (adds(Slot(0, "node-0", 1, 1, ((1, 1.0),))), "used GPU 1 of node-0, which has 1"),
        (adds(Slot(0, "node-0", 1, 1)), "add up to something else"),
        (
            adds(Slot(0, "node-0", 0, 0.6, ((0, 0.6),)), Slot(1, "node-0", 0, 0.6, ((0, 0.6),))),
            "gave away 1.2 of GPU 0 on node-0",
        ),
        (lambda request, cluster, plan: "done", "returned a str, not a PlacementPlan"),
    ],
)
def test_an_impossible_plan_is_refused_by_the_strategys_name(
    strategy: Callable[..., PlacementPlan], problem: str
) -> None:
    with pytest.raises(PlacementError) as caught:
        plan_job(REQUEST, NODES, [("greedy", strategy)])
    assert "the placement strategy 'greedy'" in str(caught.value)
    assert problem in str(caught.value)


def test_a_strategy_may_not_undo_an_earlier_one() -> None:
    first = adds(Slot(0, "node-0", 1), Assignment("b", 0, 0))

    def shrinks(request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        return msgspec.structs.replace(plan, slots=(Slot(0, "node-1", 1),))

    def evicts(request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        return msgspec.structs.replace(plan, assignments=())

    with pytest.raises(PlacementError, match="'shrinks' changed slots"):
        plan_job(REQUEST, NODES, [("first", first), ("shrinks", shrinks)])
    with pytest.raises(PlacementError, match="'evicts' moved b/0"):
        plan_job(REQUEST, NODES, [("first", first), ("evicts", evicts)])
