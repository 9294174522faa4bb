"""Which deaths of a master count against it."""

from __future__ import annotations

from rolemesh_durable.hosting.restarts import LIMIT, Restarts


def test_a_master_killed_at_work_is_started_again_at_once_every_time() -> None:
    restarts = Restarts()
    assert {restarts.died(lived_s=0.1, in_control=True, by_signal=True) for _ in range(50)} == {0.0}


def test_masters_that_fail_in_a_row_wait_longer_and_longer_and_are_given_up() -> None:
    restarts = Restarts()
    delays = [restarts.died(lived_s=1.0, in_control=True, by_signal=False) for _ in range(LIMIT)]
    assert delays == [0.25, 0.5, 1.0, 2.0, None]


def test_a_master_killed_before_it_is_in_control_counts() -> None:
    restarts = Restarts(LIMIT - 1)
    assert restarts.died(lived_s=1.0, in_control=False, by_signal=True) is None


def test_one_that_lived_for_long_makes_earlier_failures_forgotten() -> None:
    restarts = Restarts(LIMIT - 1)
    assert restarts.died(lived_s=60.0, in_control=True, by_signal=False) == 0.25
