"""The reward at the end of a program, and the failures that are none."""

from __future__ import annotations

import pytest

from rolemesh_agents import Reward
from rolemesh_gateway.programs import ProgramResult
from rolemesh_gateway.rewards import Failed, Verdict, verdict

DONE = ProgramResult(0, "", "4\n0.5\n")
WRONG = ProgramResult(1, "", "", "AssertionError")
LATE = ProgramResult(None, "seconds")


def judged(result, source, reward=None, over=False, if_truncated=None):
    return verdict(result, source, reward, over, if_truncated)


@pytest.mark.parametrize(
    ("result", "source", "reward"),
    [
        (DONE, "environment", None),
        (DONE, "exit", Reward(1.0, success=True)),
        (DONE, "stdout", Reward(0.5)),
        (WRONG, "exit", Reward(0.0, success=False)),
        (WRONG, "call", Reward(0.25)),
        (DONE, "call", Reward(0.25)),
    ],
)
def test_each_source_gives_the_reward(result, source, reward):
    assert judged(result, source, Reward(0.25)) == Verdict(reward)


@pytest.mark.parametrize(
    ("result", "source", "reason"),
    [
        (WRONG, "environment", "exit status 1. Its last output: AssertionError"),
        (WRONG, "stdout", "exit status 1"),
        (ProgramResult(0, "", "nan"), "stdout", "no number"),
        (ProgramResult(0, "", ""), "stdout", "no number"),
        (DONE, "call", "set no reward"),
        (ProgramResult(-9, ""), "exit", "signal 9"),
        (ProgramResult(127, "", "", "cannot run x"), "exit", "cannot run x"),
        (ProgramResult(None, "processes"), "exit", "more processes"),
        (ProgramResult(None, "guard"), "environment", "guard"),
    ],
)
def test_a_failure_is_no_reward_of_zero(result, source, reason):
    found = judged(result, source)
    assert isinstance(found, Failed)
    assert reason in found.reason


@pytest.mark.parametrize("source", ["exit", "stdout", "call"])
def test_a_truncated_program_gets_the_reward_of_the_options_or_fails(source):
    assert isinstance(judged(LATE, source), Failed)
    found = judged(LATE, source, if_truncated=-1.0)
    assert found.reward == Reward(-1.0)
    assert "seconds" in found.truncated
    assert judged(WRONG, "exit", over=True, if_truncated=-1.0) == Verdict(Reward(-1.0))


def test_the_environment_judges_a_truncated_program():
    assert judged(LATE, "environment").reward is None
    assert judged(WRONG, "environment", over=True) == Verdict(None)


def test_a_reward_that_was_set_before_a_limit_counts():
    assert judged(LATE, "call", Reward(0.75)).reward == Reward(0.75)
