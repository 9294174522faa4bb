"""The facts of the first page: the order of metrics, their trend, the speed of a run, and the time until its end."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import msgspec
import pytest

from rolemesh.api.observer import StepMetrics
from rolemesh_facts import RunFacts
from rolemesh_facts.critical import Critical, Station
from rolemesh_facts.curves import curve_of
from rolemesh_facts.overview import by_importance, headlines, largest_fall, pace_of, seconds_per_step, trend
from rolemesh_recorder.lines import Account, FlowEdge, FlowFile, FlowOp, Head, encode, rank_folder
from rolemesh_view.overview import bottleneck, goal_of, misses
from rolemesh_view.viewed import Viewed

GRPO = (
    "load_s", "grad_norm", "lr", "loss", "logprob_diff", "entropy", "lag_0", "trained_tokens", "reward",
    "completion_length", "eval_accuracy", "eval_completion_length",
)  # fmt: skip


def test_goals_and_evaluations_come_before_health_amounts_and_durations() -> None:
    ordered = by_importance(GRPO)
    assert ordered[:3] == ["reward", "loss", "eval_accuracy"]
    assert ordered[-1] == "load_s"
    assert ordered.index("grad_norm") < ordered.index("completion_length") < ordered.index("trained_tokens")


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (GRPO, ["reward", "eval_accuracy"]),
        (("loss", "eval_loss", "lr"), ["loss", "eval_loss"]),
        (("rewards/correct", "train_loss"), ["rewards/correct"]),
        (("closs", "norewards"), []),
        ((), []),
    ],
)
def test_the_first_page_shows_one_goal_and_the_evaluations(names: tuple[str, ...], shown: list[str]) -> None:
    assert headlines(names) == shown


def test_a_metric_rises_or_falls_only_beyond_its_noise() -> None:
    draw = random.Random(5)
    noise = [draw.gauss(0.0, 1.0) for _ in range(300)]
    up = [0.02 * at + each for at, each in enumerate(noise)]
    steps = list(range(300))
    assert [found.word for found in (trend((steps, up)), trend((steps, [-each for each in up]))) if found] == [
        "rises",
        "falls",
    ]
    found = trend((steps, noise))
    assert found is not None
    assert found.word == "stays"


def test_values_that_fall_each_time_fall_also_if_they_fell_most_at_first() -> None:
    found = trend((range(14), [1 / (1 + 3 * at) for at in range(14)]))
    assert found is not None
    assert found.word == "falls"
    steady = trend((range(14), [0.4] * 13 + [0.3]))
    assert steady is not None
    assert steady.word == "stays"


def test_a_trend_of_three_to_five_values_needs_their_order() -> None:
    words = [trend((range(len(each)), each)) for each in ([0.5, 0.0, 0.1667], [1.0, 2.0, 3.0], [1.0, 1.0, 1.0])]
    assert [found and found.word for found in words] == [None, "rises", "stays"]


def test_the_speed_of_the_flow_is_that_of_the_overview(tmp_path: Path) -> None:
    """Steps take 31 s: the last minute of the record has the ends of one or two, and whole steps have three."""
    folder = rank_folder(tmp_path, "work", 0)
    folder.mkdir(parents=True)
    flow = FlowFile("seen", (FlowOp(0, "work", "work.do"),), (FlowEdge(0, 0, 0, "x", "Split()"),), {"work": 1}, {})
    (tmp_path / "record/flow.json").write_bytes(msgspec.json.encode(flow))
    accounts = [Account(at * 1_000_000, 1_000_000, at // 31, int(at % 31 == 30)) for at in range(130)]
    lines = [Head("work", 0, 0, 1, "node", 0), *accounts]
    (folder / "000000.jsonl").write_bytes(b"".join(encode(each) + b"\n" for each in lines))
    rest: dict[str, object] = {"operators": {}, "roles": {}, "staleness": {}, "records": {}}
    metrics = [{"step": at, "steps": 1, "time": 31.0 * (at + 1), **rest} for at in range(4)]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in metrics))
    look = Viewed(tmp_path).look()
    assert look.rate == look.states[0].values_s == pytest.approx(1 / 31)
    assert look.recent_s == pytest.approx(93.0), "three whole steps"


def test_the_largest_fall_is_the_one_between_two_finite_values() -> None:
    assert largest_fall(([0, 1, 2, 5], [3.0, 1.0, math.nan, 0.5])) == (1, 3.0, 1.0)
    assert largest_fall(([0, 1], [1.0, 1.0])) is None


def test_a_value_counts_as_often_as_its_line_has_steps() -> None:
    points = [9, 19, 20, 21, 22, 32], [5.0, 7.0, 1.0, 1.0, 1.0, 3.0]
    found = trend(points, {9: 10, 19: 10, 20: 1, 21: 1, 22: 1, 32: 10})
    assert found is not None
    assert (found.first, found.last) == (5.0, pytest.approx((10 * 3.0 + 1.0) / 11))


def test_values_that_are_not_finite_say_nothing_about_a_trend() -> None:
    assert trend(([0, 1, 2], [1.0, math.nan, 2.0])) is None
    found = trend(([0, 1, 2, 3], [1.0, math.inf, 2.0, 3.0]))
    assert found == (1.0, 3.0, "rises")


def test_a_line_that_covers_several_steps_counts_as_many() -> None:
    lines = [StepMetrics(step, steps, time, {}, {}, {}, {}, {}) for step, steps, time in [(9, 10, 1.0), (19, 10, 6.0)]]
    assert seconds_per_step(lines) == 0.5
    assert seconds_per_step(lines[:1]) is None


def test_the_time_that_is_left_is_that_of_the_steps_that_are_left(tmp_path: Path) -> None:
    events = [{"seq": 0, "epoch": 1, "time": 100.0, "kind": "job_started", "data": {}}]
    run = {"name": "seen", "steps": 20, "roles": {"work": 1}}
    rest: dict[str, object] = {"operators": {}, "roles": {}, "staleness": {}, "records": {}}
    lines = [{"step": at, "steps": 1, "time": 100.0 + 2 * at, "reward": float(at), **rest} for at in range(10)]
    (tmp_path / "events.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in events))
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(run))
    facts = RunFacts(tmp_path)
    summary, metrics = facts.summary()._replace(steps=20), facts.metrics()
    ended = pace_of(metrics, summary, None)
    assert (ended.elapsed, ended.step, ended.left) == (18.0, 2.0, None)
    assert pace_of(metrics, summary, 120.0) == (20.0, 2.0, 18.0)
    assert pace_of(metrics, summary, 1000.0).left is None, "nobody knows when a job ends that is late"
    assert goal_of(facts) == ("reward", 9.0)
    assert facts.paced() == metrics
    with (tmp_path / "events.jsonl").open("a") as told:
        told.write('{"seq": 1, "epoch": 1, "time": 113.0, "kind": "resized", "data": {"sizes": {"work": 2}}}\n')
    assert [line.step for line in facts.paced()] == [7, 8, 9], "only lines of the present size"
    (tmp_path / "events.jsonl").write_bytes(
        b'{"seq": 0, "epoch": 1, "time": 200.0, "kind": "job_started", "data": {"origin_step": 12}}\n'
    )
    (tmp_path / "metrics.jsonl").unlink()
    assert RunFacts(tmp_path).summary().step == 12, "the job goes on after this step"


def test_the_sentence_names_the_largest_stations() -> None:
    stations = (
        Station("operator", "rollout.generate", 0.7),
        Station("edge", "weights", 0.26),
        Station("engine", "", 0.04),
    )
    said = bottleneck(Critical((Station("grant", "a: waits for the master", 0.5, "a"),), (), 0, 1))
    assert said.startswith("A step waits most for the master, before further steps of a (50%)")
    said = bottleneck(Critical(stations, (), 0, 1))
    assert said.startswith("A step waits most for rollout.generate (70%), then the edge weights (26%)")
    assert bottleneck(None) == ""


def test_a_curve_has_a_gap_where_a_value_is_not_finite_and_shows_a_single_value() -> None:
    found = curve_of(([0, 1, 2], [1.0, math.nan, 3.0]), 100, 60)
    assert (found.raw.count("M"), found.odd, found.low, found.high) == (2, 1, 1.0, 3.0)
    alone = curve_of(([7], [0.25]), 100, 60)
    assert "h3" in alone.raw
    assert alone.low < 0.25 < alone.high < 1.0
    assert curve_of(([], []), 100, 60).raw == ""


def test_the_figures_of_a_curve_of_many_values_are_those_of_all_values() -> None:
    values = [10.0 if at % 100 == 0 else math.nan if at % 100 == 50 else 1.0 for at in range(10_000)]
    found = curve_of((list(range(10_000)), values), 600, 100)
    assert (found.odd, found.around) == (100, 1001)
    height = float(re.split("[ML]", found.mean)[300].partition(",")[2])
    mean = found.low + (found.floor - height) / (found.floor - found.top) * (found.high - found.low)
    assert mean == pytest.approx(1 + 9 / 99, abs=0.1), "not that of the smallest and the largest values"
    assert found.raw.count("L") + found.raw.count("M") < 1000


def test_a_curve_that_has_no_more_values_ends_before_its_axis_and_says_so() -> None:
    found = curve_of(([0, 5, 10], [1.0, 2.0, 3.0]), 162, 60, until=20)
    assert (found.last, found.raw.rpartition("L")[2].partition(",")[0]) == (20, "102.0")
    assert [misses([0, 1, 2], until) for until in (2, 3, 4)] == [False, False, True]
    assert [misses([0, 10, 20], until) for until in (29, 35, 36)] == [False, False, True]
    assert not misses([7], 100)
