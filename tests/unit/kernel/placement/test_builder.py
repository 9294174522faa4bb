"""The builder of plans: it counts, keeps to constraints, undoes a choice, and finds the obstacle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolemesh.errors import Problems
from rolemesh.job.planning import check_placed
from rolemesh.placement import (
    Apart,
    PlacementPlan,
    PlacementRequest,
    PlanBuilder,
    RoleRequest,
    Spread,
    Wish,
    Within,
    broken,
    smallest_conflict,
)
from rolemesh.placement.nodes import parse_nodes

REQUEST = PlacementRequest((RoleRequest("a", 9), RoleRequest("b", 9)))
CPU = {"cpu": 1.0}


def builder(nodes: str, plan: PlacementPlan | None = None) -> PlanBuilder:
    return PlanBuilder(REQUEST, parse_nodes(nodes), plan or PlacementPlan())


def test_a_plan_goes_on_where_the_last_one_ended() -> None:
    first = builder("(cpu=1),(cpu=1)")
    assert first.put([("a", 0)], CPU, "mine") is not None
    second = builder("(cpu=1),(cpu=1)", first.build())
    assert second.waiting("a") == list(range(1, 9))
    slot = second.put([("a", 1)], CPU, "mine")
    assert slot is not None
    assert (slot.id, slot.node) == (1, "node-1")
    assert second.put([("a", 2)], CPU, "mine") is None


def test_slots_that_belong_together_are_put_on_one_node_or_not_at_all() -> None:
    made = builder("(cpu=1),(cpu=2)")
    wishes = [Wish([("a", rank)], CPU, "pair") for rank in (0, 1)]
    assert made.put_together(wishes) == "node-1"
    before = made.build()
    assert made.put_together([Wish([("b", rank)], CPU, "pair") for rank in (0, 1)]) is None
    assert made.build() == before


def test_slots_on_several_nodes_are_all_put_or_all_taken_back() -> None:
    made = builder("(cpu=1),(cpu=1)")
    made.constrain(Spread("s", "a", 1))
    assert not made.put_across([Wish([("a", rank)], CPU, "unit") for rank in range(3)], ["node-0", "node-1"])
    assert made.build().assignments == ()
    assert made.free("node-0")["cpu"] == 1
    assert made.put_across([Wish([("a", rank)], CPU, "unit") for rank in range(2)], ["node-0", "node-1"])
    assert {slot.node for slot in made.build().slots} == {"node-0", "node-1"}


def test_a_constraint_that_is_demanded_twice_is_kept_once() -> None:
    made = builder("(cpu=1)")
    for _ in range(2):
        made.constrain(Apart("s", ("a",), ("b",)))
    assert made.build().constraints == (Apart("s", ("a",), ("b",)),)


def test_the_error_for_an_impossible_rank_has_the_smallest_set_of_reasons() -> None:
    made = builder("(cpu=9,label.rack=x),(cpu=2,label.rack=y)")
    made.constrain(Within("s", "a", (("rack", "y"),)))
    made.constrain(Spread("s", "b", 3))
    made.refuse([("a", 0)], {"cpu": 4.0})
    (unplaced,) = made.build().unplaced
    assert unplaced.reason.startswith("no node meets all of this: needs cpu 4")
    assert "s wants a on nodes with rack=y" in unplaced.reason
    assert "s allows" not in unplaced.reason


def test_the_error_names_a_node_with_room_that_the_strategy_leaves_out() -> None:
    made = builder("(cpu=1),(cpu=9)")
    made.refuse([("a", 0)], {"cpu": 4.0}, "on nodes with a price")
    (unplaced,) = made.build().unplaced
    assert unplaced.reason == "on nodes with a price, but the strategy leaves out node-1, which has room"


def test_the_remedy_of_a_strategy_is_printed_or_else_the_usual_one() -> None:
    made = builder("(cpu=1)")
    made.refuse([("a", 0)], {}, why="its partner is elsewhere", remedy="name the partner in options.pairs")
    made.refuse([("a", 1), ("a", 2)], {"cpu": 4.0}, "pairs", remedy="set options.pairs to null")
    made.refuse([("b", 0)], {"cpu": 4.0})
    with pytest.raises(Problems) as raised:
        check_placed(made.build())
    first, second = raised.value.errors
    assert first.remedy == "name the partner in options.pairs; set options.pairs to null"
    assert second.remedy == "lower roles.b.world_size or roles.b.resources, share slots, or add nodes"


def test_a_plan_that_breaks_a_constraint_is_found_out() -> None:
    made = builder("(cpu=9)")
    made.put([("a", 0)], CPU, "")
    made.put([("b", 0)], CPU, "")
    plan = made.build()
    cluster = parse_nodes("(cpu=9)")
    assert broken(plan, cluster) is None
    made.constrain(Apart("s", ("a",), ("b",)))
    found = broken(made.build(), cluster)
    assert found is not None
    assert found[1].ref == ("b", 0)


def test_a_smallest_conflict_is_hit_by_every_node() -> None:
    assert smallest_conflict([frozenset({"a", "b"}), frozenset({"b", "c"})]) == ("b",)
    assert smallest_conflict([]) == ()
    with pytest.raises(ValueError, match="meets every demand"):
        smallest_conflict([frozenset()])


@given(st.lists(st.frozensets(st.sampled_from("abcde"), min_size=1), min_size=1, max_size=8))
def test_no_smaller_set_would_do(violated: list[frozenset[str]]) -> None:
    found = set(smallest_conflict(violated))
    assert all(each & found for each in violated)
    for demand in found:
        assert not all(each & (found - {demand}) for each in violated)
