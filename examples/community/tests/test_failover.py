"""Tests when ranks leave a node, and when a job ends."""

from __future__ import annotations

from typing import Any

import pytest
from rolemesh import Failure, GiveUp, JobView, Pass, RankView, RecoveryPlan
from rolemesh_testing import FailoverConformance

from rolemesh_fieldkit.failover import GivingUp, Quarantine

RANKS = (
    RankView("replay", 0, "n0", "running", 3, 0),
    RankView("simulator", 0, "n0", "running", 3, 0),
    RankView("trainer", 0, "n0", "running", 3, 0),
    RankView("trainer", 1, "n1", "running", 3, 0),
)


class TestQuarantine(FailoverConformance):
    plugin = "quarantine"
    bad_options = ({"strikes": 0},)


def died(node: str = "n0", role: str = "replay", rank: int = 0, cause: Any = "signal") -> Failure:
    return Failure(cause, role, rank, node)


def recover(failure: Failure, *earlier: Failure, **options: Any) -> RecoveryPlan | None:
    view = JobView("job", 1, 2, RANKS, collective=("trainer",), failures=earlier)
    plan: Any = Quarantine(Quarantine.Options(**options)).recover(failure=failure, view=view)
    assert plan is None or isinstance(plan, RecoveryPlan)
    return plan


def test_the_first_strike_starts_what_died_where_it_was() -> None:
    plan = recover(died())
    assert plan is not None
    assert (plan.restart, plan.avoid, plan.source) == ((("replay", 0),), (), "memory")


def test_with_the_last_strike_all_ranks_of_the_node_leave_it_with_their_groups() -> None:
    plan = recover(died(), died(role="simulator"))
    assert plan is not None
    assert plan.avoid == ("n0",)
    assert set(plan.restart) == {("replay", 0), ("simulator", 0), ("trainer", 0), ("trainer", 1)}


@pytest.mark.parametrize("earlier", [died("n1"), died(cause="exception")], ids=["another node's", "an exception"])
def test_a_failure_without_fault_of_the_node_is_no_strike(earlier: Failure) -> None:
    plan = recover(died(), earlier)
    assert plan is not None
    assert not plan.avoid


def test_an_exception_starts_again_in_place_even_on_a_bad_node() -> None:
    plan = recover(died(cause="exception"))
    assert plan is not None
    assert not plan.avoid
    assert plan.reason.startswith("0 of 2 strikes on n0")


def test_a_lost_agent_is_a_strike_and_takes_its_ranks_down() -> None:
    plan = recover(Failure("agent_lost", node="n0"), strikes=3)
    assert plan is not None
    assert set(plan.restart) == {("replay", 0), ("simulator", 0), ("trainer", 0), ("trainer", 1)}
    assert "1 of 3 strikes" in plan.reason


def test_nodes_that_were_left_stay_out_as_long_as_there_are_not_too_many() -> None:
    earlier = [died("n7"), died("n7"), died("n8"), died("n8"), died("n8"), died("n0")]
    found = [recover(died(), *earlier, most=most) for most in (1, 2, 3)]
    assert [plan and plan.avoid for plan in found] == [("n0",), ("n0", "n8"), ("n0", "n8", "n7")]


def test_a_lost_node_and_a_rank_that_nobody_has_are_passed_on() -> None:
    assert recover(Failure("node_lost", node="n0")) is None
    assert recover(Failure("agent_lost", node="n9")) is None


LEVEL = GivingUp(GivingUp.Options(messages=["licen[cs]e (server|expired)"], failures=3, window_s=60))


class TestGiveUp(FailoverConformance):
    plugin = "give-up"
    options = {"messages": ["boom"], "failures": 3}  # noqa: RUF012
    bad_options = ({"failures": 0}, {"messages": "boom"})
    examples = 60


def answer(message: str, *failed_at: float) -> GiveUp | Pass:
    view = JobView("job", 1, 2, (), (), now=100.0, failed_at=failed_at)
    answer: GiveUp | Pass = LEVEL.recover(Failure("exception", "trainer", 0, "n0", message=message), view)
    return answer


def test_a_hopeless_message_ends_the_job_at_once() -> None:
    assert answer("the license expired") == GiveUp("no restart can help: 'license expired' in what trainer says")


@pytest.mark.parametrize(
    ("failed_at", "ends"), [((), False), ((90.0,), False), ((10.0, 90.0), False), ((50.0, 90.0), True)]
)
def test_too_many_failures_lately_end_the_job(failed_at: tuple[float, ...], ends: bool) -> None:
    assert isinstance(answer("boom", *failed_at), GiveUp) is ends
