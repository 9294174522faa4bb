"""The traffic between nodes, counted pair by pair, and the origin of the transfers' sizes."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolemesh.api.partition import Broadcast, Partition, Split
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh.job.planning import transfers_of
from rolemesh.placement import Assignment, PlacementPlan, PlacementRequest, RoleRequest, Slot, Transfer
from rolemesh_subgraph.traffic import crossing, pairs


def spread(nodes: dict[str, list[str]]) -> PlacementPlan:
    """Rank i of each role on the i-th of its nodes."""
    slots: list[Slot] = []
    assignments: list[Assignment] = []
    for role, places in nodes.items():
        for rank, node in enumerate(places):
            assignments.append(Assignment(role, rank, len(slots)))
            slots.append(Slot(len(slots), node, 1))
    return PlacementPlan(tuple(slots), tuple(assignments))


def test_an_aligned_flow_crosses_where_counterparts_are_apart() -> None:
    request = PlacementRequest((RoleRequest("a", 2), RoleRequest("b", 4)), (Transfer("a", "b", bytes=100),))
    found = crossing(request, spread({"a": ["x", "y"], "b": ["x", "y", "y", "x"]}))
    assert (found.total, found.crossing) == (100, 50)


def test_everybody_to_everybody_crosses_with_everybody_elsewhere() -> None:
    request = PlacementRequest((RoleRequest("a", 2), RoleRequest("b", 2)), (Transfer("a", "b", "all", bytes=80),))
    assert crossing(request, spread({"a": ["x", "x"], "b": ["x", "y"]})).crossing == 40


def test_transfers_of_unknown_size_are_listed_and_left_out_of_the_sums() -> None:
    request = PlacementRequest((RoleRequest("a", 1), RoleRequest("b", 1)), (Transfer("a", "b"),))
    found = crossing(request, spread({"a": ["x"], "b": ["y"]}))
    assert (found.total, found.crossing, found.unknown) == (0, 0, 1)


@given(st.integers(1, 9), st.integers(1, 9))
def test_aligned_pairs_are_those_that_share_rows_by_how_many(m: int, n: int) -> None:
    shared = {
        (i, j): (min((i + 1) * n, (j + 1) * m) - max(i * n, j * m)) / (m * n)
        for i, j in product(range(m), range(n))
        if max(i * n, j * m) < min((i + 1) * n, (j + 1) * m)
    }
    assert {(i, j): share for i, j, share in pairs(m, n)} == pytest.approx(shared)


@given(
    st.lists(st.sampled_from("xyz"), min_size=1, max_size=5), st.lists(st.sampled_from("xyz"), min_size=1, max_size=5)
)
def test_counting_by_node_is_counting_by_pair(a: list[str], b: list[str]) -> None:
    request = PlacementRequest(
        (RoleRequest("a", len(a)), RoleRequest("b", len(b))), (Transfer("a", "b", "all", bytes=1),)
    )
    apart = sum(x != y for x, y in product(a, b)) / (len(a) * len(b))
    assert crossing(request, spread({"a": a, "b": b})).crossing == pytest.approx(apart)


def graph(src: Partition, dst: Partition) -> LogicalGraph:
    ops = (OpCall(0, "a", "make", "a.make", src), OpCall(1, "b", "take", "b.take", None))
    return LogicalGraph("g", ops, (Edge(0, 0, 1, "rows", src, dst),))


@pytest.mark.parametrize(
    ("src", "dst", "m", "n", "pattern", "size"),
    [
        (Split(), Split(), 2, 4, "aligned", 100),
        (Split(), Broadcast(), 2, 4, "all", 400),
        (Broadcast(), Broadcast(), 1, 3, "aligned", 300),
        (Split(), Split(), 1, 3, "aligned", 100),
    ],
)
def test_a_flow_says_who_gives_to_whom_and_what_comes_whole_counts_for_each(
    src: Partition, dst: Partition, m: int, n: int, pattern: str, size: float
) -> None:
    (transfer,) = transfers_of(graph(src, dst), {"a": m, "b": n}, {0: 100.0})
    assert (transfer.src, transfer.dst, transfer.pattern, transfer.bytes) == ("a", "b", pattern, size)
    (unknown,) = transfers_of(graph(src, dst), {"a": m, "b": n}, {})
    assert unknown.bytes is None
