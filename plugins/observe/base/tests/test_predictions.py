"""Predictions for other numbers of ranks, and what resizes then did."""

from __future__ import annotations

import pytest
from msgspec import structs

from rolemesh.api.observer import Event, StepMetrics
from rolemesh.api.rank_ref import RankRef
from rolemesh_facts.sizes import sizes_at
from rolemesh_facts.time_use import Use
from rolemesh_recorder.lines import FlowEdge, FlowFile, FlowOp
from rolemesh_view.predictions import change, forecast, load_of, predicted, resizes

FLOW = FlowFile(
    "seen",
    (FlowOp(0, "rollout", "rollout.generate"), FlowOp(1, "trainer", "trainer.train")),
    (FlowEdge(0, 0, 1, "rows", "Split(axis=0) → Split(axis=0)", "1"),),
    {"rollout": 2, "trainer": 1},
    {},
)
USES = {
    RankRef("rollout", 0): Use({"computing": 100.0}, 100.0, 10, finished=19),
    RankRef("rollout", 1): Use({"computing": 90.0}, 100.0, 10, finished=19),
    RankRef("rollout", 2): Use({"computing": 1.0}, 100.0, 10),
    RankRef("trainer", 0): Use({"computing": 70.0, "edge 0": 30.0}, 100.0, 10, finished=19),
}


def event(time: float, kind: str, **data: object) -> Event:
    return Event(int(time), 1, time, kind, dict(data))


def test_one_rank_more_of_the_bottleneck_is_predicted_up_to_the_next_slowest_role() -> None:
    load = load_of(FLOW, USES, sizes_at(FLOW, []))
    assert load is not None
    assert [role.busy for role in load.roles] == [pytest.approx(0.95), pytest.approx(0.7)], "rank 2 does not run"
    found = forecast(load)
    assert found.bottleneck is not None
    assert str(found.bottleneck) == "trainer waited for rows from rollout for 30% of the time"
    assert [str(each) for each in found.predictions] == ["rollout 2 → 3 ranks: steps 25% shorter"]
    assert predicted(load, {"rollout": 1}) == pytest.approx(-0.95), "what no role explains of a step stays"
    assert change(-1.0) == "steps 100% longer"


def test_a_role_that_runs_ahead_counts_with_the_steps_of_the_slowest_one() -> None:
    uses = {ref: use._replace(steps=20, finished=29) if ref.role == "rollout" else use for ref, use in USES.items()}
    load = load_of(FLOW, uses, FLOW.sizes)
    assert load is not None
    assert [role.busy for role in load.roles] == [pytest.approx(0.475), pytest.approx(0.7)]


def test_a_role_that_ran_ahead_before_counts_with_the_work_of_all_steps() -> None:
    """The trainer made half of its steps earlier: it waits, although a step costs it as much as the time of one."""
    uses = {**USES, RankRef("trainer", 0): Use({"computing": 45.0}, 100.0, 5, finished=19)}
    load = load_of(FLOW, uses, FLOW.sizes)
    assert load is not None
    assert [role.busy for role in load.roles] == [pytest.approx(0.95), pytest.approx(0.9)]


def test_roles_count_with_all_their_work_while_no_whole_step_has_ended() -> None:
    uses = {**USES, RankRef("trainer", 0): Use({"computing": 70.0}, 100.0, 0.1, finished=9)}
    load = load_of(FLOW, uses, FLOW.sizes)
    assert load is not None
    assert [each.busy for each in load.roles] == [0.95, 0.7]


def test_a_value_that_is_taken_behind_all_calls_that_send_counts_for_the_next_step() -> None:
    """Two steps of the loop may be under way: the trainer's work of a step, and the rollout's of the next one."""
    ops = (*FLOW.ops, FlowOp(2, "rollout", "rollout.load"))
    edges = (structs.replace(FLOW.edges[0], lag="0"), FlowEdge(1, 1, 2, "weights", "Broadcast()", "AtMost(1)"))
    for sends, lag in ((0, 2), (2, 1)):
        flow = structs.replace(FLOW, ops=ops, edges=(*edges, FlowEdge(2, sends, 1, "rows", "Split()")))
        load = load_of(flow, USES, FLOW.sizes)
        assert load is not None
        assert [edge.lag for edge in load.edges] == [0, lag, 0]


def test_no_rank_is_predicted_for_a_job_whose_time_its_roles_do_not_explain() -> None:
    idle = {ref: Use({"computing": 30.0}, 100.0, 10) for ref in USES}
    load = load_of(FLOW, idle, FLOW.sizes)
    assert load is not None
    assert forecast(load) == (None, 0.0, (), False, pytest.approx(0.3))
    assert predicted(load, {"rollout": 3}) is None
    assert load_of(FLOW, {}, FLOW.sizes) is None


def test_a_resize_compares_the_durations_of_steps_before_it_and_after_it() -> None:
    lines = [StepMetrics(step, 1, 0.2 * step) for step in range(100)]
    lines += [StepMetrics(100 + step, 1, 23.0 + 0.15 * step) for step in range(100)]
    events = [
        event(19.9, "resize_asked", number=1, sizes={"rollout": 3}, reason="rolemesh view: scale, by jo"),
        event(21.0, "resized", number=1, sizes={"rollout": 3}),
        event(25.0, "resize_asked", number=2, sizes={"rollout": 9}, reason=""),
        event(25.1, "resize_refused", number=2, why="there is no room"),
        event(50.0, "resize_asked", number=3, sizes={"trainer": 2}, reason=""),
    ]
    under_way, refused, done = resizes(FLOW, events, lines)
    assert (str(refused), refused.refused, refused.shorter) == ("rollout 3 → 9 ranks", "there is no room", None)
    assert (str(done), done.reason) == ("rollout 2 → 3 ranks", "rolemesh view: scale, by jo")
    assert (done.before, done.after, done.shorter) == tuple(pytest.approx(x) for x in (0.2, 0.15, 0.25))
    assert (under_way.done, under_way.shorter, under_way.was) == (0.0, None, {"trainer": 1})
    assert sizes_at(FLOW, events) == {"rollout": 3, "trainer": 1}
