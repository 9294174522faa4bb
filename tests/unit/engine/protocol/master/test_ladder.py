"""The ladder and earlier recoveries: the time of the next attempt, and the end of the attempts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from rolemesh.api.failover import GiveUp
from rolemesh.api.failures import Attempt, Failure, JobView, Pass, RankView, RecoveryPlan, Verdict
from rolemesh.api.observer import Event
from rolemesh_console.sentences import sentence
from rolemesh_durable.protocol.master.ladder import (
    MAX_DELAY_S,
    SOON_S,
    LadderLevel,
    Proposal,
    Tried,
    backoff,
    escalated,
    propose,
)

WORK, OTHER = ("work", 0), ("other", 0)
DIED = Failure("signal", *WORK, signal=9)


def level(name: str, max_attempts: int = 5, delay_s: float = 0.0) -> LadderLevel:
    return LadderLevel(
        name, "process", max_attempts, 300.0,
        lambda failure, view: RecoveryPlan(view.lost_with(failure), reason="again", delay_s=delay_s),
    )  # fmt: skip


LADDER = (level("process"), level("job"))


def asked(attempts: Sequence[Attempt], now: float, finished: int, ladder: Sequence[LadderLevel] = LADDER) -> Proposal:
    """Return the proposal after the death of work/0, which has finished this step."""
    ranks = tuple(RankView(*key, "n", "failed", finished, 0) for key in (WORK, OTHER))
    return propose([DIED], JobView("job", 1, -1, ranks, (), attempts=tuple(attempts), now=now), ladder, [])


def attempt(level: str, at: float, reached: int, ended_at: float, key: tuple[str, int] = WORK) -> Attempt:
    return Attempt(level, at, (key,), "", "recovered", ((*key, reached),), ended_at)


def delay(proposal: Proposal) -> float:
    assert proposal.plan is not None
    return proposal.plan.delay_s


def test_the_first_attempt_is_immediate_and_each_further_one_in_vain_waits_twice_as_long() -> None:
    assert [backoff(number) for number in range(1, 10)] == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff(10_000) == MAX_DELAY_S


def test_ranks_that_die_without_a_new_step_wait_longer_and_longer_whichever_level_it_is() -> None:
    tried: list[Attempt] = []
    found: list[tuple[str, float, int]] = []
    now = 100.0
    while (proposal := asked(tried, now, 7)).plan is not None:
        found.append((proposal.plan.level, proposal.plan.delay_s, proposal.attempt))
        began = now
        now += proposal.plan.delay_s + 0.2
        tried.append(attempt(proposal.plan.level, began, 7, now))
    assert found == [(level, backoff(n + 1), n + 1) for n, level in enumerate(["process"] * 5 + ["job"] * 5)]
    assert now - 100.0 > 60, "half a minute of trouble does not end a job"
    assert proposal.trail[-1].startswith("  job: tried 5 times")


@pytest.mark.parametrize(
    ("lived_s", "finished", "expected"),
    [(60.0, 8, 0.0), (SOON_S, 8, 0.0), (0.25, 500, 0.25), (0.125, 7, 0.375), (0.0, 3, 0.5)],
)
def test_a_rank_that_has_finished_a_new_step_and_lived_a_while_starts_again_at_once(
    lived_s: float, finished: int, expected: float
) -> None:
    assert delay(asked([attempt("process", 10.0, 7, 11.0)], 11.0 + lived_s, finished)) == expected


@pytest.mark.parametrize(("lived_s", "expected"), [(0.0, 4.0), (3.0, 1.0), (60.0, 0.0)])
def test_time_for_which_the_ranks_have_lived_counts_as_waiting(lived_s: float, expected: float) -> None:
    tried = [attempt("process", 10.0 * n, 7, 10.0 * n + 1.0) for n in range(4)]
    proposal = asked(tried, 31.0 + lived_s, 7)
    assert (delay(proposal), proposal.attempt) == (expected, 5)


def test_a_delay_counts_from_the_failure_if_the_last_attempt_did_not_succeed() -> None:
    tried = [msgspec.structs.replace(attempt("process", 10.0, 7, 11.0), outcome=end) for end in ("recovered", "failed")]
    assert delay(asked(tried, 60.0, 7)) == 1.0


def test_only_what_came_since_the_last_progress_counts_and_only_of_the_same_ranks() -> None:
    tried = [attempt("process", 10.0, 7, 10.2), attempt("process", 11.0, 7, 11.2), attempt("process", 20.0, 9, 20.2)]
    assert delay(asked(tried, 20.2, 9)) == 0.5
    others = [attempt("process", 20.1, 7, 20.2, OTHER)] * 3
    assert delay(asked([*tried, *others], 20.2, 9)) == 0.5


def test_attempts_in_vain_count_however_long_ago_they_were_and_others_within_the_window() -> None:
    ladder = (level("process", 3),)
    for apart in (1.0, 3600.0):
        tried = [attempt("process", n * apart, 7, n * apart + 0.1) for n in range(3)]
        ended = asked(tried, 3 * apart, 7, ladder)
        assert ended.plan is None
        assert f"tried 3 times in {max(300.0, 3 * apart):.0f} s" in ended.trail[-1]
    helped = [attempt("process", n * 200.0, n, n * 200.0 + 0.1) for n in range(9)]
    assert asked(helped, 9 * 200.0, 20, ladder).plan is not None
    assert asked(helped, 8 * 200.0 + 5.0, 20, (level("process", 2),)).plan is None


def test_a_level_may_ask_for_a_delay_itself() -> None:
    slow = (level("slow", delay_s=3.0),)
    assert delay(asked([], 10.0, 7, slow)) == 3.0
    assert delay(asked([attempt("slow", float(n), 7, n + 0.1) for n in range(4)], 3.1, 7, slow)) == 4.0


def test_the_next_level_after_a_plan_that_could_not_be_carried_out_is_immediate() -> None:
    tried = [msgspec.structs.replace(attempt("process", 10.0, 7, 11.0), outcome="failed")]
    ranks = (RankView(*WORK, "n", "failed", 7, 0),)
    view = JobView("job", 1, -1, ranks, (), attempts=tuple(tried), now=11.0)
    assert delay(propose([DIED], view, LADDER, [], floors=[1])) == 0.0


def test_a_level_sees_the_verdict_and_may_pass_with_a_reason() -> None:
    seen: list[Verdict | None] = []

    def passes(failure: Failure, view: JobView) -> Pass:
        seen.append(view.verdict)
        return Pass("not on a night like this")

    verdict = Verdict("software", "it looks like it")
    ladder = [LadderLevel("shy", "process", 5, 300.0, passes), level("job")]
    view = JobView("job", 1, -1, (RankView(*WORK, "n", "failed", 3, 0),), ())
    proposal = propose([DIED], view, ladder, [lambda failure, view: verdict])
    assert seen == [verdict]
    assert proposal.plan is not None
    assert proposal.plan.level == "job"
    assert "  shy: not on a night like this" in proposal.trail


def test_a_level_that_gives_up_ends_the_job_with_its_reason_and_asks_no_further_level() -> None:
    asked_last: list[Failure] = []

    def last(failure: Failure, view: JobView) -> RecoveryPlan:
        asked_last.append(failure)
        return RecoveryPlan((WORK,))

    ladder = [
        LadderLevel("licence", "process", 5, 300.0, lambda failure, view: GiveUp("the licence server is gone")),
        LadderLevel("job", "job", 5, 300.0, last),
    ]
    view = JobView("job", 1, -1, (RankView(*WORK, "n", "failed", 3, 0),), ())
    found = propose([DIED, Failure("exit", *OTHER)], view, ladder, [])
    assert (found.plan, found.ended_by, asked_last) == (None, "licence", [])
    assert found.trail[-1] == "  licence ends the job: the licence server is gone"
    data = {"trail": list(found.trail), "ended_by": found.ended_by}
    shown = sentence(Event(1, 1, 0.0, "ladder_exhausted", data))
    assert shown is not None
    assert shown.startswith("the failover level 'licence' ends the job:\n")


def test_values_of_a_lost_log_that_others_have_used_come_back_from_the_disk_only() -> None:
    lost = Failure("log_lost", *WORK)
    disk = LadderLevel("disk", "job", 5, 300.0, lambda failure, view: RecoveryPlan((WORK, OTHER), source="disk"))
    view = JobView("job", 1, -1, tuple(RankView(*key, "n", "failed", 3, 0) for key in (WORK, OTHER)), ())
    assert propose([lost], view, LADDER, []).plan is None
    found = propose([DIED, lost], view, (*LADDER, disk), [])
    assert found.plan is not None
    assert (found.plan.level, found.plan.source, found.plan.restart) == ("disk", "disk", (WORK, OTHER))


def test_a_level_that_has_not_requested_a_place_is_kept_if_there_is_none() -> None:
    def leaves(failure: Failure, view: JobView) -> RecoveryPlan | None:
        return RecoveryPlan(view.lost_with(failure), avoid=(failure.node,)) if failure.node else None

    job = msgspec.structs.replace(level("job"), scope="job")
    ladder = (level("process"), LadderLevel("node", "node", 5, 300.0, leaves), job)
    ranks = (RankView(*WORK, "a", "failed", 3, 0), RankView(*OTHER, "b", "failed", 3, 0))
    view, lost = JobView("job", 1, -1, ranks, ()), Failure("node_lost", node="b")
    hardware = [lambda failure, view: Verdict("hardware" if failure.node else "software", "")]
    proposal = propose([DIED, lost], view, ladder, hardware)
    assert proposal.tried == (Tried("process"), Tried("node", moves=True))
    assert escalated([DIED, lost], proposal.tried, view, ladder, no_place=True) == [0, 2]
    assert escalated([DIED, lost], proposal.tried, view, ladder, no_place=False) == [1, 2]
    moved = msgspec.structs.replace(view, ranks=(ranks[0], msgspec.structs.replace(ranks[1], node="a")))
    both = [lost, Failure("node_lost", node="a")]
    asked = (Tried("job", moves=True), Tried("node", moves=True))
    assert escalated(both, asked, moved, ladder, no_place=True) == [2, 2], "what was on b has a place"
    assert escalated([lost], asked[:1], moved, ladder, no_place=True) == [3], "somebody is to blame"
    after = propose(both, moved, ladder, hardware, [3, 2])
    assert after.plan is not None, "who has lost nothing does not end the job"
    assert after.plan.level == "job"
    assert propose([lost], moved, ladder, hardware, [3]).plan is None
