"""When calls are active, and which values are taken: the closed form equals the recursive definition."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from rolemesh.api.partition import Broadcast
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh.graph.schedule import Activity, Period, zero_lag_cycle

SPLIT = Broadcast()


def graph_of(ops: Sequence[tuple[str, int, int]], edges: Sequence[tuple[int, int, int]]) -> LogicalGraph:
    """`ops` are (role, every, at), `edges` (src, dst, lag)."""
    calls = [
        OpCall(i, role, f"op{i}", f"{role}.op{i}", SPLIT, every=every, at=at) for i, (role, every, at) in enumerate(ops)
    ]
    wires = [Edge(i, src, dst, f"p{i}", SPLIT, SPLIT, lag=lag) for i, (src, dst, lag) in enumerate(edges)]
    return LogicalGraph("test", tuple(calls), tuple(wires))


@st.composite
def graphs(draw: st.DrawFn) -> LogicalGraph:
    """Up to 7 calls with random beats; edges forward with any lag, and backward with a lag."""
    count = draw(st.integers(1, 7))
    ops = []
    for _ in range(count):
        every = draw(st.sampled_from([1, 1, 2, 3, 4, 6]))
        ops.append((draw(st.sampled_from("abc")), every, draw(st.integers(0, every - 1))))
    edges = [
        (src, dst, draw(st.integers(0 if src < dst else 1, 4)))
        for src, dst in draw(
            st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=8, unique=True)
        )
    ]
    return graph_of(ops, edges)


@given(graphs())
def test_activity_is_what_the_definition_says_at_every_step(graph: LogicalGraph) -> None:
    @cache
    def active(op: int, step: int) -> bool:
        call = graph.ops[op]
        return step % call.every == call.at and all(
            step >= edge.lag and active(edge.src, step - edge.lag) for edge in graph.inputs(op)
        )

    activity = Activity(graph)
    for op in graph.ops:
        steps = [step for step in range(70) if active(op.id, step)]
        assert steps == [step for step in range(70) if activity.active(op.id, step)]
        assert activity.always(op.id) == (steps == list(range(70)))
        period = activity.periods[op.id]
        if period is not None and period.first < 70:
            assert period.first == steps[0]
        if op.id in activity.never():
            assert not steps


@given(graphs(), st.integers(1, 30))
def test_a_value_is_sent_exactly_if_its_consumer_takes_it(graph: LogicalGraph, steps: int) -> None:
    activity = Activity(graph)
    for edge in graph.edges:
        sent = {s for s in range(steps) if activity.active(edge.src, s) and activity.consumed(edge, s, steps)}
        taken = {t - edge.lag for t in range(steps) if activity.active(edge.dst, t)}
        assert sent == taken


@given(*[st.builds(lambda s, e, a: Period(s, e, a % e), st.integers(0, 9), st.integers(1, 12), st.integers(0, 11))] * 2)
def test_the_meeting_of_two_rhythms_is_their_intersection(one: Period, other: Period) -> None:
    both = [step for step in range(300) if step in one and step in other]
    meeting = one.meet(other)
    assert both == [step for step in range(300) if meeting is not None and step in meeting]


def test_a_lagged_call_skips_its_first_steps_and_what_depends_on_it_does_too() -> None:
    activity = Activity(graph_of([("a", 1, 0), ("b", 1, 0), ("c", 2, 1)], [(0, 1, 2), (1, 2, 0)]))
    assert [step for step in range(6) if activity.active(1, step)] == [2, 3, 4, 5]
    assert [step for step in range(6) if activity.active(2, step)] == [3, 5]
    assert activity.always(0)
    assert not activity.always(1)


def test_values_of_the_last_steps_that_nobody_takes_are_not_sent() -> None:
    graph = graph_of([("a", 1, 0), ("b", 1, 0)], [(0, 1, 2)])
    assert [step for step in range(5) if Activity(graph).consumed(graph.edges[0], step, 5)] == [0, 1, 2]


def test_calls_that_depend_on_themselves_never_run_and_neither_does_what_follows() -> None:
    graph = graph_of([("a", 1, 0), ("b", 1, 0), ("c", 1, 0), ("d", 1, 0)], [(0, 1, 0), (1, 0, 1), (1, 2, 0)])
    assert set(Activity(graph).never()) == {0, 1, 2}


def test_a_long_chain_of_coprime_beats_needs_no_table() -> None:
    beats = [2, 3, 5, 7, 11, 13, 17, 19]
    ops = [("a", every, 0) for every in beats]
    activity = Activity(graph_of(ops, [(i, i + 1, 0) for i in range(len(ops) - 1)]))
    assert activity.active(7, 9699690)
    assert not activity.active(7, 9699689)


def test_a_roles_schedule_is_its_calls_in_the_flows_order() -> None:
    graph = graph_of([("a", 1, 0), ("b", 1, 0), ("a", 1, 0)], [])
    assert [call.id for call in graph.of_role("a")] == [0, 2]


def test_a_cycle_may_go_through_the_order_of_calls_on_one_role() -> None:
    ops = [("a", 1, 0), ("b", 1, 0), ("b", 1, 0)]
    assert zero_lag_cycle(graph_of(ops, [(0, 1, 0), (2, 0, 0)])) == (0, 1, 2, 0)
    assert zero_lag_cycle(graph_of(ops, [(0, 1, 0), (2, 0, 1)])) is None
    assert zero_lag_cycle(graph_of(ops, [(0, 0, 0)])) == (0, 0)
