"""Tests that hopeless messages and too many failures end the job, and that the level passes on the rest."""

from __future__ import annotations

import pytest
from rolemesh import Failure, GiveUp, JobView, Pass
from rolemesh_testing import FailoverConformance

from rolemesh_toolbox.give_up import GivingUp

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
