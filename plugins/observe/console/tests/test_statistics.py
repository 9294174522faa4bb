"""The console's statistics of a job: thirds, rates, the time left, shares of time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolemesh.api.observer import Event, RoleTimes, StepMetrics
from rolemesh_console.statistics import MAX_BUCKETS, Series, Statistics


def line(
    step: int,
    time: float,
    *,
    steps: int = 1,
    operators: dict[str, dict[str, float]] | None = None,
    roles: dict[str, RoleTimes] | None = None,
    **values: float,
) -> StepMetrics:
    return StepMetrics(step, steps, time, values, operators or {}, roles or {})


def series(values: list[float]) -> Series:
    result = Series()
    for step, value in enumerate(values):
        result.add(step, value)
    return result


def test_the_thirds_are_means_of_the_first_and_last_third_of_the_steps() -> None:
    thirds = series([1, 2, 3, 9, 9, 9, 9, 4, 5, 6]).thirds()

    assert thirds is not None
    assert (thirds.first, thirds.last) == (2.0, 5.0)


def test_fewer_than_three_values_have_no_thirds() -> None:
    assert series([1, 2]).thirds() is None


def test_values_that_are_not_finite_are_shown_and_not_counted() -> None:
    s = series([math.nan, 1.0, math.inf, 3.0, 5.0, math.nan])

    assert s.first == (1, 1.0)
    assert s.last == (4, 5.0)
    assert s.seen == 3
    assert math.isnan(s.latest)


def test_a_series_without_any_finite_value_has_neither_first_nor_points() -> None:
    s = series([math.nan, math.nan])

    assert (s.first, s.last, s.thirds(), s.points(8)) == (None, None, None, [])


def test_a_long_series_stays_small_and_keeps_its_thirds() -> None:
    n = 3 * MAX_BUCKETS + 1000
    s = series([float(i) for i in range(n)])

    thirds = s.thirds()
    assert thirds is not None
    assert thirds.first == pytest.approx((n / 3 - 1) / 2, rel=0.01)
    assert thirds.last == pytest.approx(n - n / 6, rel=0.01)
    assert s.first == (0, 0.0)
    assert s.last == (n - 1, n - 1.0)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(1, 40))
def test_a_sparkline_has_at_most_the_points_asked_for_within_the_values(values: list[float], n: int) -> None:
    points = series(values).points(n)

    assert 1 <= len(points) <= n
    assert min(values) - 1e-6 <= min(points)
    assert max(points) <= max(values) + 1e-6


def test_the_time_left_follows_the_recent_speed_and_leaves_out_the_first_step() -> None:
    stats = Statistics()
    stats.event(Event(1, 1, 0.0, "job_running"))
    stats.steps([line(0, 60.0), line(1, 62.0), line(2, 64.0)])

    assert stats.seconds_per_step() == 2.0
    assert stats.seconds_left(10, now=64.0) == 14.0
    assert stats.seconds_left(10, now=65.0) == 13.0
    assert stats.seconds_left(10, now=1000.0) is None, "the job is late"


def test_the_time_left_follows_the_speed_since_a_resize_as_soon_as_that_is_known() -> None:
    stats = Statistics()
    stats.event(Event(1, 1, 0.0, "job_running"))
    stats.steps(line(step, 60.0 + 2 * step) for step in range(10))
    stats.event(Event(2, 1, 79.0, "resized"))
    stats.steps([line(10, 90.0)])
    assert stats.seconds_per_step() == 3.0  # of all, with the time that the resize took
    stats.steps([line(11, 91.0)])
    assert stats.seconds_left(20, now=91.0) == 8.0


def test_the_time_left_is_unknown_before_the_first_step() -> None:
    assert Statistics().seconds_left(10, now=1.0) is None


def test_lines_that_come_in_one_batch_take_the_speed_since_the_job_ran() -> None:
    stats = Statistics()
    stats.event(Event(1, 1, 10.0, "job_running"))
    stats.steps(line(step, 12.0) for step in range(4))

    assert stats.seconds_per_step() == 0.5


def test_a_line_for_many_steps_counts_as_many() -> None:
    stats = Statistics()
    stats.steps([line(9, 10.0, steps=10), line(19, 30.0, steps=10)])

    assert stats.seconds_per_step() == 2.0
    assert stats.finished == 20


def test_a_line_of_many_steps_has_values_per_step() -> None:
    stats = Statistics()
    stats.event(Event(1, 1, 0.0, "job_running"))
    operators = {"a.b": {"trained_tokens": 250.0, "rows_left_out": 0.25}}
    lines = [line(step, 1.0 + step, operators=operators, reward=1.0) for step in range(4)]
    stats.steps([*lines, *(line(step, 1.0 + step, steps=4, operators=operators, reward=4.0) for step in (7, 11))])

    assert stats.mean_rates() == {"trained_tokens": 250.0}
    assert stats.rates() == {"trained_tokens": 250.0}
    assert (stats.amounts, stats.left_out) == ({"trained_tokens": 3000.0}, 3.0)
    thirds = stats.series["reward"].thirds()
    assert thirds is not None
    assert (thirds.first, thirds.last) == (1.0, 4.0), "of 12 steps, not of 6 lines"
    assert stats.series["reward"].points(3) == [1.0, 4.0, 4.0]


def test_quantities_named_tokens_become_rates_summed_over_operators() -> None:
    operators = {"a.generate": {"generated_tokens": 30.0}, "b.generate": {"generated_tokens": 10.0, "reward": 1.0}}
    stats = Statistics()
    stats.event(Event(1, 1, 0.0, "job_running"))
    stats.steps(line(step, 2.0 * (step + 1), operators=operators) for step in range(4))

    assert stats.rates() == {"generated_tokens": 20.0}
    assert stats.mean_rates() == {"generated_tokens": 20.0}
    assert stats.amounts == {"generated_tokens": 160.0}


def test_shares_of_a_role_add_up_to_one() -> None:
    stats = Statistics()
    stats.steps([line(0, 1.0, roles={"a": RoleTimes(1.0, 2.0, 1.0), "idle": RoleTimes()})])

    assert stats.shares(recent=False) == {"a": (0.25, 0.5, 0.25, 0.0)}
    assert stats.shares(recent=True) == {"a": (0.25, 0.5, 0.25, 0.0)}


def test_a_role_that_does_nothing_for_most_of_the_time_is_idle() -> None:
    stats = Statistics()
    stats.event(Event(1, 1, 0.0, "job_running"))
    stats.steps([line(step, 5.0 * step, roles={"a": RoleTimes(1.0, 0.0, 0.0)}) for step in range(1, 3)])

    assert stats.shares(recent=False) == {"a": (0.2, 0.0, 0.0, 0.8)}
    assert stats.shares(recent=True) == {"a": (0.2, 0.0, 0.0, 0.8)}


def test_recent_shares_do_not_change_the_totals() -> None:
    stats = Statistics()
    for step in range(3):
        stats.steps([line(step, float(step), roles={"a": RoleTimes(1.0, 0.0, 0.0)})])
        stats.shares(recent=True)

    assert stats.role_totals["a"].computing_s == 3.0


def test_by_default_reward_and_loss_come_first_and_times_and_tokens_are_left_out() -> None:
    stats = Statistics()
    stats.steps([line(0, 1.0, lr=1.0, load_s=2.0, loss=3.0, generated_tokens=4.0, reward=5.0)])

    assert stats.featured() == ["reward", "loss", "lr"]


def test_wanted_metrics_are_shown_in_the_order_asked_for_where_they_exist() -> None:
    stats = Statistics(wanted=("lr", "missing", "reward"))
    stats.steps([line(0, 1.0, reward=1.0, loss=2.0, lr=3.0)])

    assert stats.featured() == ["lr", "reward"]


def test_the_first_and_the_last_value_of_a_record_are_kept() -> None:
    stats = Statistics(kept=("answers",))
    for step, value in ((0, "a"), (5, "b"), (9, "c")):
        metrics = line(step, float(step))
        metrics.records = {"answers": value, "other": "never kept"}
        stats.steps([metrics])

    assert stats.records == {"answers": ((0, "a"), (9, "c"))}
