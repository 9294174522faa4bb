"""How far apart snapshots are, and that ranks which take few of them have some in common."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolemesh_durable.protocol.owing import apart_s, must_persist


@given(st.floats(1e-5, 5.0))
def test_by_default_snapshots_take_a_hundredth_of_the_time(pause: float) -> None:
    assert apart_s(pause, None) == pytest.approx(100 * pause)


def test_where_failures_come_often_less_is_lost_by_each() -> None:
    assert apart_s(1.0, None, failures_s=32.0) == pytest.approx(8.0)
    assert apart_s(1.0, None, failures_s=1e6) == pytest.approx(100.0)


def test_a_limit_of_the_job_file_holds() -> None:
    assert apart_s(1.0, 5.0) == 5.0
    assert apart_s(1.0, 0.0) == 0.0
    assert apart_s(0.01, 5.0) == pytest.approx(1.0)


@given(st.lists(st.floats(0.0, 300.0), min_size=1, max_size=5), st.integers(1, 12), st.integers(0, 500))
def test_ranks_with_whatever_pauses_have_checkpoints_in_common(apart: list[float], every: int, begin: int) -> None:
    """As many as the one with the fewest takes by itself, which are at most twice as far apart as it wants them."""
    span = int(4 * max(*apart, every)) + 1
    steps = [step for step in range(begin, begin + span) if (step + 1) % every == 0]
    taken = [{step for step in steps if must_persist(step, every, each)} for each in apart]
    assert set.intersection(*taken) == min(taken, key=len)
    assert min(taken, key=len)


@given(st.floats(1.0, 300.0), st.integers(1, 12))
def test_no_more_are_taken_than_are_wanted(apart: float, every: int) -> None:
    taken = [step for step in range(every - 1, 20_000, every) if must_persist(step, every, apart)]
    assert all(after - before >= apart for before, after in pairwise(taken))
