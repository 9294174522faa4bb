"""Lines of metrics end at the same steps in every rank, and a change never moves an end that was there before."""

from __future__ import annotations

import random

import pytest

from rolemesh_durable.protocol.metrics.line_cuts import Cuts, LinePace, last_end, line_end, united, with_cut, with_end


def ends(cuts: Cuts, last: int) -> list[int]:
    """The ends of all lines from the first cut on, found line by line."""
    step, found = cuts[0][0], []
    while step <= last:
        found.append(line_end(cuts, step))
        step = found[-1] + 1
    return found


def test_lines_end_at_multiples_and_before_each_change() -> None:
    assert ends(((0, 1), (3, 4), (14, 2)), 19) == [0, 1, 2, 3, 7, 11, 13, 15, 17, 19]


def test_a_line_that_began_before_a_resumed_jobs_first_step_goes_on_there() -> None:
    assert [line_end(((7, 4),), step) for step in (5, 7, 8)] == [7, 7, 11]


@pytest.mark.parametrize("seed", range(50))
def test_every_step_of_a_line_finds_the_same_end_and_changes_keep_earlier_ones(seed: int) -> None:
    rng = random.Random(seed)
    cuts: Cuts = ((rng.randrange(5), 1 << rng.randrange(4)),)
    begin = cuts[0][0]
    for _ in range(6):
        before = ends(cuts, 200)
        new = cuts[-1][0] + rng.randrange(1, 30), 1 << rng.randrange(6)
        longer = with_cut(cuts, new, -1)
        assert [end for end in ends(longer, 200) if end < new[0] - 1] == [end for end in before if end < new[0] - 1]
        assert united(cuts, longer) == united(longer, cuts) == longer
        cuts = longer
        found = ends(cuts, 200)
        for step in range(begin, 200):
            assert line_end(cuts, step) == next(end for end in found if end >= step)
            assert last_end(cuts, step) == max((end for end in found if end <= step), default=begin - 1)


def test_a_stop_point_adds_an_end_and_moves_no_other() -> None:
    cuts: Cuts = ((0, 8), (64, 16))
    stop = with_end(cuts, 36, -1)
    assert set(ends(stop, 200)) == {*ends(cuts, 200), 36}


def test_cuts_that_no_rank_can_need_are_forgotten() -> None:
    assert with_cut(((0, 1), (10, 4)), (40, 8), restored=9) == ((0, 1), (10, 4), (40, 8))
    assert with_cut(((0, 1), (10, 4)), (40, 8), restored=10) == ((10, 4), (40, 8))
    assert united(((0, 1), (10, 4)), ((10, 4), (40, 8))) == ((10, 4), (40, 8))


def test_a_line_that_was_begun_before_a_changed_layout_ends_there_after_a_later_change_too() -> None:
    resized = with_end(((0, 8),), 36, 36)
    assert [line_end(cuts, 32) for cuts in (resized, with_cut(resized, (64, 16), 36))] == [36, 36]


def wanted(pace: LinePace, per_s: float, every: int, since: float) -> int:
    """Return the steps per line that a job of `per_s` steps per second gets after four seconds."""
    for tick in range(20):
        now = since + tick * 0.2
        every = pace.wanted(int(now * per_s), every, now)
    return every


def test_a_rank_writes_at_most_twenty_lines_per_second_and_a_line_per_step_of_50_ms() -> None:
    assert wanted(LinePace(), 20.0, 1, 0.0) == 1
    assert wanted(LinePace(), 10_000.0, 1, 0.0) == 512
    pace = LinePace()
    assert wanted(pace, 100.0, 1, 0.0) == 8
    assert wanted(pace, 90.0, 8, 10.0) == 8


def test_lines_become_shorter_again_where_steps_become_much_slower() -> None:
    pace = LinePace()
    pace.wanted(0, 512, 0.0)
    assert pace.wanted(10, 512, 1.0) == 1


def test_lines_stay_as_long_while_a_job_stands_still_for_a_moment() -> None:
    pace, every, found, finished = LinePace(), 1, [], 0
    for tick in range(400):
        finished += 0 if tick % 30 > 20 else 20  # 100 steps per second, with pauses of two seconds
        every = pace.wanted(finished, every, tick * 0.2)
        found.append(every)
    assert set(found[1:]) == {8}
