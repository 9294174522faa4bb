"""How far ahead ranks may run: some seconds of theirs, whether a step takes microseconds or minutes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.configs import master_config

from rolemesh.api.partition import Split
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh_durable.protocol.master.grants import AHEAD_S, LEAST, LOOK_S, GrantSize
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan

REPORT_S = 0.1


def sizes(*, grant: int | None = None, snapshots: SnapshotPlan | None = None, credits: int | None = None) -> GrantSize:
    ops = (OpCall(0, "a", "make", "a.make", Split()), OpCall(1, "b", "take", "b.take", None))
    graph = LogicalGraph("g", ops, (Edge(0, 0, 1, "x", Split(), Split(), credits=credits),))
    return GrantSize(master_config(graph, steps=10**9, grant=grant, snapshots=snapshots or SnapshotPlan()))


class Job:
    """Ranks that do `speed` steps a second as long as they may, and report each `REPORT_S`."""

    def __init__(self, size: GrantSize) -> None:
        self.size, self.now, self.at, self.granted, self.waited = size, 5.0, 0.0, -1, 0.0

    def run(self, seconds: float, speed: float) -> int:
        for _ in range(round(seconds / REPORT_S)):
            ahead = self.size.ahead(int(self.at) - 1, self.granted, self.now)
            if int(self.at) - 1 + ahead - self.granted >= max(1, ahead // 2):
                self.granted = int(self.at) - 1 + ahead
            self.now += REPORT_S
            able = self.at + speed * REPORT_S
            self.at = min(able, self.granted + 1)
            self.waited += (able - self.at) / speed
        return ahead


@given(st.floats(1e-2, 5e4))
def test_for_any_duration_of_a_step_ranks_have_some_seconds_ahead_and_do_not_wait(speed: float) -> None:
    job = Job(sizes())
    job.run(5.0, speed)
    job.waited = 0.0
    ahead = job.run(20.0, speed)
    assert job.waited <= 0.011, "a rounded step"
    assert ahead <= max(LEAST, 4 * AHEAD_S * speed, AHEAD_S / LOOK_S), "slow ones may be seen in the moment of a step"
    assert ahead >= 0.9 * AHEAD_S * speed - AHEAD_S / LOOK_S, "a step more or less where it was last looked"


def test_a_rank_that_was_held_at_a_step_gets_no_unlimited_grant_afterwards() -> None:
    """As before a resize: they have come to the end of their grant, and the master looks many times a second."""
    job = Job(sizes())
    job.run(10.0, 10.0)
    for _ in range(1000):
        held = job.size.ahead(job.granted, job.granted, job.now)
        job.now += 0.01
    assert held <= 4 * AHEAD_S * 10.0
    job.at = job.granted + 1
    job.run(1.0, 10.0)
    assert job.granted - job.at <= 4 * AHEAD_S * 10.0


def test_after_a_masters_absence_ranks_get_no_more_than_they_can_do_in_some_seconds() -> None:
    job = Job(sizes())
    job.run(10.0, 10.0)
    job.at, job.now = job.granted + 1, job.now + 60.0
    assert job.size.ahead(job.granted, job.granted, job.now) <= 1.5 * AHEAD_S * 10.0


def test_quick_ranks_are_held_back_for_a_moment_at_the_start_only() -> None:
    job = Job(sizes())
    job.run(5.0, 30_000)
    assert job.waited < 0.6


def test_ranks_that_become_slow_are_soon_granted_little() -> None:
    job = Job(sizes())
    job.run(5.0, 10_000)
    assert job.run(15.0, 0.1) == 2 * 2, "what its edge can carry"


def test_keys_are_limits_and_what_edges_need_is_granted() -> None:
    assert Job(sizes(grant=3)).run(5.0, 1000) == 3
    assert Job(sizes(credits=64)).run(20.0, 0.01) == 128


def test_a_job_that_goes_back_is_measured_from_there() -> None:
    job = Job(sizes())
    job.run(5.0, 1000)
    job.at, job.granted = 10, 9
    assert job.run(5.0, 1000) >= 0.9 * AHEAD_S * 1000
