"""Units of prefill and decode ranks stay together and know each other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rolemesh import PlacementPlan, PlacementRequest, RoleRequest
from rolemesh.errors import PlacementError, Problems
from rolemesh.job.planning import check_placed, plan_job
from rolemesh.placement import Capacity
from rolemesh.placement.nodes import parse_nodes
from rolemesh_pd import PdOptions, PdScheduler


def place(cluster: str, m: int, n: int, /, **options: Any) -> PlacementPlan:
    scheduler = PdScheduler(PdOptions(**({"prefill": "prefill", "decode": "decode"} | options)))
    roles = RoleRequest("prefill", m, cpu=2, gpu=1), RoleRequest("decode", n, cpu=1, gpu=1)
    return plan_job(PlacementRequest(roles), parse_nodes(cluster), [("pd", scheduler.place)])


def units(plan: PlacementPlan) -> list[set[str]]:
    """The nodes of each unit."""
    found: dict[str, set[str]] = {}
    for a in plan.assignments:
        found.setdefault(a.rule, set()).add(plan.slots[a.slot].node)
    return list(found.values())


def test_a_unit_stays_on_one_node_and_its_ranks_know_each_other() -> None:
    plan = place("3x(cpu=8,gpu=3)", 2, 4)
    assert units(plan) == [{"node-0"}, {"node-1"}]
    peers = {a.ref: a.peers for a in plan.assignments}
    assert peers["decode", 3] == (("prefill", 1),)
    assert peers["prefill", 0] == (("decode", 0), ("decode", 1))
    assert plan.assignments[0].rule == "pd: unit 0 (1:2)"


@pytest.mark.parametrize(("m", "n", "ratio"), [(2, 2, "1:1"), (2, 4, "1:2"), (4, 2, "2:1"), (4, 4, "2:2")])
def test_ratios(m: int, n: int, ratio: str) -> None:
    plan = place("4x(cpu=16,gpu=4)", m, n, ratio=ratio)
    p, d = map(int, ratio.split(":"))
    for a in plan.assignments:
        assert len(a.peers) == (d if a.role == "prefill" else p)


def test_a_unit_that_no_node_takes_goes_to_nodes_with_one_label_or_nowhere() -> None:
    racks = "(cpu=8,gpu=1,label.rack=a),2x(cpu=8,gpu=1,label.rack=b)"
    with pytest.raises(Problems, match="a unit of 1:1 belongs on one node, but needs gpu 2, the most that is free"):
        check_placed(place("3x(cpu=8,gpu=1)", 1, 1))
    plan = place(racks, 1, 1, near="label.rack")
    assert units(plan) == [{"node-1", "node-2"}]


def test_a_unit_is_placed_whole_or_not_at_all() -> None:
    plan = place("(cpu=8,gpu=2),(cpu=8,gpu=1)", 2, 2)
    assert {u.ref for u in plan.unplaced} == {("prefill", 1), ("decode", 1)}
    with pytest.raises(Problems, match="a unit of 1:1 belongs on one node, but needs gpu 2, the most that is free"):
        check_placed(plan)


@pytest.mark.parametrize(
    ("sizes", "options", "words"),
    [
        ((3, 4), {"ratio": "1:2"}, ("prefill has 3 ranks and decode 4", "1:2", "roles.prefill.world_size=2")),
        ((1, 1), {"decode": "decod"}, ("no role 'decod'", "did you mean 'decode'")),
        ((1, 1), {"near": "label.rack"}, ("no node has a label 'rack'",)),
    ],
)
def test_impossible_options_are_refused(
    sizes: tuple[int, int], options: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(PlacementError) as caught:
        place("(cpu=8,gpu=8)", *sizes, **options)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"decode": "prefill"}, "they are two roles"),
        ({"ratio": "1/2"}, "is not PREFILL:DECODE"),
        ({"ratio": "0:2"}, "is not PREFILL:DECODE"),
        ({"near": "rack"}, "neither node nor label.NAME"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        PdOptions(**({"prefill": "prefill", "decode": "decode"} | options))


@given(
    units_=st.integers(1, 4),
    each=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    gpus=st.lists(st.integers(0, 6), max_size=5),
)
def test_units_are_whole_within_capacity_or_refused(units_: int, each: tuple[int, int], gpus: list[int]) -> None:
    p, d = each
    cluster = ",".join(f"(cpu=32,gpu={gpu})" for gpu in gpus) or "(cpu=1)"
    plan = place(cluster, units_ * p, units_ * d, ratio=f"{p}:{d}")
    assert all(len(nodes) == 1 for nodes in units(plan))
    room = sum(gpu // (p + d) for gpu in gpus)
    assert len(plan.assignments) == min(room, units_) * (p + d)
    capacity = Capacity(parse_nodes(cluster), plan.slots)
    assert all(amount >= 0 for node in capacity.nodes for amount in capacity.free(node).values())
