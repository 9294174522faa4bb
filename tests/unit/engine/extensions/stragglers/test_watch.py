"""A rank that is slow for long is named once; noise, waiting and short bursts are not."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from rolemesh.api.failures import Failure
from rolemesh_durable.extensions.stragglers.watch import StragglerWatch
from rolemesh_durable.protocol.messages import RankReport


def watch(
    per_step: Callable[[int, int], float],
    *,
    ranks: int = 4,
    seconds: int = 300,
    steps_per_s: float = 1.0,
    collective: bool = False,
    worked: Callable[[int], float] = lambda rank: 0.0,
) -> list[tuple[int, Failure]]:
    """Return the stragglers, each with the second at which the watch names it.

    `per_step(rank, second)`: seconds that a rank computes in a step. `worked(rank)`: the part in which a rank of
    a collective role works itself.
    """
    watching = StragglerWatch(factor=2.0, for_s=60.0)
    busy = dict.fromkeys(range(ranks), 0.0)
    said = []
    for second in range(seconds):
        for rank in range(ranks):
            finished = int(second * steps_per_s)
            busy[rank] += per_step(rank, second) * (finished - int((second - 1) * steps_per_s) if second else 0)
            report = RankReport(
                "rollout", rank, 0, "ready", finished=finished, busy_s=busy[rank], worked_s=finished * worked(rank)
            )
            if (slow := watching.seen(report, float(second), collective=collective)) is not None:
                said.append((second, slow))
    return said


def test_a_rank_that_is_slow_for_long_is_named_once_with_numbers() -> None:
    [(when, failure)] = watch(lambda rank, second: 0.9 if rank == 2 else 0.3)
    assert 60 <= when <= 90
    assert (failure.cause, failure.role, failure.rank) == ("straggler", "rollout", 2)
    assert failure.message == (
        "it needs 0.9 s to compute a step, the median of the role's other 3 is 0.3 s; so for 60 s at least"
    )


def test_the_slower_of_two_ranks_is_compared_with_the_other() -> None:
    assert [slow.rank for _, slow in watch(lambda rank, second: 0.2 + 0.5 * rank, ranks=2)] == [1]


def test_a_burst_is_not_sustained() -> None:
    assert watch(lambda rank, second: 0.9 if rank == 2 and second % 80 < 35 else 0.3) == []


def test_below_the_factor_or_with_all_ranks_slow_nobody_is_named() -> None:
    assert watch(lambda rank, second: 0.55 if rank == 2 else 0.3) == []
    assert watch(lambda rank, second: 0.3 if second < 50 else 0.9) == []


def test_a_rank_that_takes_almost_no_time_is_no_straggler_at_any_factor() -> None:
    assert watch(lambda rank, second: 2e-3 if rank == 2 else 2e-5) == []


def test_in_a_collective_role_the_rank_that_works_while_the_others_wait_is_named() -> None:
    """All take as long: a step is as long as the slowest works."""
    [(when, failure)] = watch(lambda rank, second: 0.9, worked=lambda rank: 0.85 if rank == 2 else 0.3, collective=True)
    assert 60 <= when <= 90
    assert failure.rank == 2
    assert "the median of the role's other 3 is 0.3 s, and they wait for it" in failure.message


def test_in_a_collective_role_no_rank_is_named_if_all_spin_or_the_busiest_waits_too() -> None:
    assert watch(lambda rank, second: 0.9, worked=lambda rank: 0.9, collective=True) == []
    assert watch(lambda rank, second: 0.9, worked=lambda rank: 0.5 if rank == 0 else 0.1, collective=True) == []


def test_a_rank_that_recovers_and_slows_down_again_is_named_again() -> None:
    said = watch(lambda rank, second: 0.9 if rank == 2 and not 100 <= second < 160 else 0.3)
    assert [slow.rank for _, slow in said] == [2, 2]


def test_a_straggler_near_the_threshold_is_reported_once() -> None:
    assert (
        len(watch(lambda rank, second: (0.66 if second % 120 < 70 else 0.55) if rank == 2 else 0.3, seconds=900)) == 1
    )


def test_a_new_generation_starts_afresh() -> None:
    watching = StragglerWatch(factor=2.0, for_s=60.0)
    said = []
    for second in range(400):
        for rank in range(3):
            generation = second // 50 if rank == 0 else 0
            slow = watching.seen(
                RankReport(
                    "a", rank, generation, "ready", finished=second, busy_s=second * (0.9 if rank == 0 else 0.3)
                ),
                float(second),
            )
            said += [slow] * (slow is not None)
    assert said == []


def test_steps_longer_than_the_window_need_several_of_them() -> None:
    [(when, _)] = watch(lambda rank, second: 90.0 if rank == 0 else 30.0, steps_per_s=0.01, seconds=1000)
    assert when >= 300


@given(st.integers(2, 8), st.data(), st.floats(2.2, 3.0), st.integers(0, 2**32))
def test_only_the_slow_rank_is_named_whatever_the_noise(
    ranks: int, data: st.DataObject, times: float, seed: int
) -> None:
    slow = data.draw(st.integers(0, ranks - 1))
    noise = Random(seed)
    said = watch(lambda rank, second: 0.3 * (times if rank == slow else 1.0) * noise.uniform(0.98, 1.02), ranks=ranks)
    assert [failure.rank for _, failure in said] == [slow]
