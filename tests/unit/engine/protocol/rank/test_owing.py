"""How far apart snapshots are, and that ranks which take few of them have some in common."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolemesh_checkpoint.pace import apart_s, until_shared
from rolemesh_durable.protocol.rank.owing import Appointments, SnapshotPace
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan


@given(st.floats(1e-5, 5.0))
def test_by_default_snapshots_take_a_hundredth_of_the_time(pause: float) -> None:
    assert apart_s(pause, None) == pytest.approx(100 * pause)


def test_with_frequent_failures_each_one_loses_less() -> None:
    assert apart_s(1.0, None, failures_s=32.0) == pytest.approx(8.0)
    assert apart_s(1.0, None, failures_s=1e6) == pytest.approx(100.0)


def test_a_limit_of_the_job_file_holds() -> None:
    assert apart_s(1.0, 5.0) == 5.0
    assert apart_s(1.0, 0.0) == 0.0
    assert apart_s(0.01, 5.0) == pytest.approx(1.0)


@given(st.lists(st.floats(0.0, 300.0), min_size=1, max_size=5), st.integers(1, 12), st.integers(0, 500))
def test_ranks_with_whatever_pauses_have_checkpoints_in_common(apart: list[float], every: int, begin: int) -> None:
    """The ranks have as many in common as the rank with the fewest takes, at most twice as far apart as it wants."""
    span = int(4 * max(*apart, every)) + 1
    steps = [step for step in range(begin, begin + span) if (step + 1) % every == 0]
    taken = [{step for step in steps if until_shared(step, every, each) == 0} for each in apart]
    assert set.intersection(*taken) == min(taken, key=len)
    assert min(taken, key=len)


@given(st.floats(1.0, 300.0), st.integers(1, 12))
def test_no_more_are_taken_than_are_wanted(apart: float, every: int) -> None:
    taken = [step for step in range(20_000) if until_shared(step, every, apart) == 0]
    assert all((step + 1) % every == 0 for step in taken)
    assert all(after - before >= apart for before, after in pairwise(taken))


MS = 1_000_000
PLAN = SnapshotPlan(enabled=True, persist_every=10, paced=True)


def paced(pauses: list[int], step: int = 0, plan: SnapshotPlan = PLAN, failures_s: float = 0.0) -> SnapshotPace:
    """Return the pace after snapshots that took `pauses` ms each. The last one, of `step`, ended at 0."""
    pace = SnapshotPace(plan)
    for pause in pauses:
        pace.taken(step, -pause * MS, 0, failures_s)
    return pace


def apart(pace: SnapshotPace) -> int:
    """Return the milliseconds after which the next snapshot is due."""
    return next(ms for ms in range(1_000_000) if pace.is_time(1, ms * MS, persist=False, pins=()))


def test_the_first_snapshot_is_due_at_once() -> None:
    assert SnapshotPace(PLAN).is_time(0, 0, persist=False, pins=())


@pytest.mark.parametrize(
    ("pauses", "ms"),
    [
        ([100], 1000),
        ([100, 100], 1000),
        ([100, 100, 10], 1000),
        ([100, 100, 20], 1000),
        ([500, 500, 20, 40, 30, 40], 2000),
        ([500, 500, 20, 40, 30, 40, 50], 3000),
    ],
    ids=["cold", "both cold", "as warm", "warm, a cold one short", "the shortest of four", "of the last four"],
)
def test_a_hundred_times_what_one_takes_when_memory_is_warm_and_nobody_disturbs(pauses: list[int], ms: int) -> None:
    assert apart(paced(pauses)) == ms


def test_failures_and_the_limit_of_the_job_file_bring_them_closer() -> None:
    assert apart(paced([2000] * 6, failures_s=100.0)) == pytest.approx(20_000, rel=1e-3)
    assert apart(paced([2000] * 6, plan=msgspec.structs.replace(PLAN, every_s=5.0))) == 5000


def test_one_for_the_disk_is_taken_where_snapshots_cost_little_or_their_pace_is_the_persons_own() -> None:
    assert paced([4] * 6).is_time(9, MS, persist=True, pins=())
    assert not paced([40] * 6).is_time(9, MS, persist=True, pins=())
    own = msgspec.structs.replace(PLAN, paced=False)
    assert paced([40] * 6, plan=own).is_time(9, MS, persist=True, pins=())
    assert not paced([40] * 6, plan=own).is_time(9, MS, persist=False, pins=())


@pytest.mark.parametrize(
    ("step_s", "pause", "disk"),
    [
        (4.9, 4, [9, 19, 29]),
        (5.1, 4, [*range(1, 31)]),
        (20.0, 600, [7, 9, 11, 15, 19, 23, 27, 29]),
        (60.0, 500, [*range(1, 31)]),
    ],
    ids=["quick steps", "long steps", "slow snapshots", "slow snapshots, long steps"],
)
def test_a_return_to_disk_costs_little_work_however_long_a_step_is(step_s: float, pause: int, disk: list[int]) -> None:
    """The snapshot of each long step goes to disk, if the pace allows it."""
    pace, at = SnapshotPace(PLAN), 0
    found = []
    for step in range(31):
        at += int(step_s * 1e3) * MS
        if step and pace.persists(step):
            found.append(step)
        pace.taken(step, at, at + (10 if step < 2 else 1) * pause * MS, 0.0)
    assert found == disk
    own = paced([4] * 6, plan=msgspec.structs.replace(PLAN, paced=False))
    own.taken(1, 100_000 * MS, 100_001 * MS, 0.0)
    assert [step for step in range(31) if own.persists(step)] == [9, 19, 29], "the person's own number holds"


def test_one_that_would_give_way_to_another_that_waits_for_the_disk_is_left_out() -> None:
    pace = paced([4] * 6)
    assert not pace.is_time(29, MS, persist=True, pins=(19,))
    assert pace.is_time(39, MS, persist=True, pins=(19,))


@given(st.integers(20, 500), st.integers(1, 4000), st.integers(1, 30))
def test_snapshots_take_a_hundredth_though_some_of_them_must_be_those_of_others(
    pause: int, step_ms: int, every: int
) -> None:
    """None is closer to the one before than the pace, and none much further away than twice as far."""
    pace, at, taken = paced([pause] * 6, plan=msgspec.structs.replace(PLAN, persist_every=every)), 0, []
    for step in range(1, 1 + 1000 * pause // step_ms):
        at += step_ms * MS
        if pace.is_time(step, at, persist=(step + 1) % every == 0, pins=()):
            taken.append(at)
            pace.taken(step, at, at + pause * MS, 0.0)
            at += pause * MS
    gaps = [(after - before) / MS - pause for before, after in pairwise(taken)]
    assert all(gap >= 99 * pause - step_ms for gap in gaps)
    assert all(gap <= 202 * pause + step_ms for gap in gaps)


def test_a_rank_that_waits_takes_what_it_owes_after_a_while() -> None:
    pace = paced([300] * 6)
    assert not pace.waited(2000 * MS, 1701 * MS)
    assert pace.waited(2000 * MS, 1700 * MS)
    assert pace.waited(30_000 * MS, 30_000 * MS)
    quick = paced([1] * 6)
    assert not quick.waited(99 * MS, 0)
    assert quick.waited(100 * MS, 0)


@given(st.integers(1, 50), st.integers(1, 400), st.integers(1, 100))
def test_a_group_that_learns_late_of_its_mates_does_not_wait_for_it_again_and_again(
    pause: int, late: int, step_ms: int
) -> None:
    """A rank learns of its mates' last snapshot `late` ms after it. Its waits take at most a hundredth of the time."""
    pace, at, lost, last = SnapshotPace(PLAN), 0, 0, -(1 << 40)
    for step in range(4000):
        at += step_ms * MS
        if pace.is_time(step, at, persist=False, pins=()):
            waited = max(0, last + late * MS - at)
            pace.taken(step, at, at + waited + pause * MS, 0.0, waited)
            lost += waited if step > 400 else 0
            at = last = at + waited + pause * MS
    assert lost <= 0.012 * at + late * MS


def test_a_mate_that_is_slow_once_does_not_keep_snapshots_apart() -> None:
    pace = SnapshotPace(PLAN)
    for step in range(6):
        at = step * 1000 * MS
        waited = 600_000 * MS if step == 3 else 0
        pace.taken(step, at, at + waited + MS, 0.0, waited)
    assert pace.is_time(6, at + 101 * MS, persist=False, pins=())


def test_a_limit_of_the_job_file_holds_for_a_group_that_waits() -> None:
    pace = SnapshotPace(msgspec.structs.replace(PLAN, every_s=0.0))
    pace.taken(0, 0, MS, 0.0)
    pace.taken(1, 2 * MS, 200 * MS, 0.0, 190 * MS)
    assert pace.is_time(2, 201 * MS, persist=False, pins=())


@given(st.integers(1, 500), st.integers(1, 2000))
def test_the_next_is_appointed_for_when_it_is_due(pause: int, step_ms: int) -> None:
    pace, at = SnapshotPace(msgspec.structs.replace(PLAN, persist_every=1 << 20)), 0
    for step in range(6):
        at += step_ms * MS
        pace.taken(step, at, at + pause * MS, 0.0)
        at += pause * MS
        if step == 0:
            assert pace.ahead(()) == 1, "nothing is known of steps, and memory was cold"
    wanted = -(-100 * pause // step_ms)
    assert pace.ahead(()) == min(wanted, 128), "and never far ahead: steps may become slow"


def test_a_group_that_meets_nowhere_takes_the_first_and_then_those_that_rank_0_says() -> None:
    told = Appointments()
    assert told.is_one(7), "the first of a life, of which nobody has spoken"
    assert told.taken(7), "the next one is to be said"
    assert told.is_one(8) is None
    told.announced(9)
    told.announced(12)
    assert [told.is_one(step) for step in (8, 9)] == [False, True]
    assert not told.taken(9), "one has been said already"
    assert [told.is_one(step) for step in (10, 11, 12, 13)] == [False, False, True, True]


def test_one_that_all_take_unasked_leaves_what_is_appointed() -> None:
    told = Appointments()
    told.taken(0)
    told.announced(20)
    assert not told.taken(10)
    assert [told.is_one(step) for step in (11, 20)] == [False, True]
    assert told.taken(25)
