"""The reward at the end of a program, and the failures that are none."""

from __future__ import annotations

import pytest

from rolemesh_agents import Reward
from rolemesh_gateway.programs import ProgramResult
from rolemesh_gateway.rewards import Failed, Verdict, verdict

DONE = ProgramResult(0, "", "4\n0.5\n")
WRONG = ProgramResult(1, "", "", "AssertionError")
TRACE = 'Traceback (most recent call last):\n  File "agent.py", line 1, in <module>\n'
UNCAUGHT = TRACE + "pydantic.ValidationError: 1 error\nfield\n  required\n"

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
        (ProgramResult(137, ""), "exit", "exit status 137"),
        (ProgramResult(2, ""), "exit", "exit status 2"),
        (ProgramResult(1, "", "", UNCAUGHT), "exit", "pydantic.ValidationError"),
        (
            ProgramResult(1, "", "", TRACE + "KeyError: 1\n\nDuring handling …:\n\n" + TRACE + "MemoryError"),
            "exit",
            "Memory",
        ),
        (ProgramResult(1, "", "", "Error: x\n    at main.js:1\n\nNode.js v22.1.0\n"), "exit", "Node.js"),
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


@pytest.mark.parametrize(
    "errors",
    [
        TRACE + "AssertionError: 4 is not 5",
        TRACE + "KeyError: 1\n\nRan 1 test in 0.001s\n\nFAILED (errors=1)\n",
        "ERROR:root:a call has failed\n" + TRACE + "KeyError: 1\n\nI give up.",
        "wrong\n",
    ],
)
def test_status_1_is_a_reward_of_0_unless_stderr_ends_with_an_uncaught_exception(errors):
    assert judged(ProgramResult(1, "", "", errors), "exit") == Verdict(Reward(0.0, success=False))


def test_the_job_file_names_the_exit_statuses_that_mean_wrong():
    found = verdict(ProgramResult(3, ""), "exit", None, over=False, if_truncated=None, wrong=(3, 4))
    assert found == Verdict(Reward(0.0, success=False))
    assert isinstance(verdict(ProgramResult(1, ""), "exit", None, False, None, wrong=(3,)), Failed)


def test_the_reason_of_a_failure_has_no_characters_that_a_terminal_obeys():
    found = judged(ProgramResult(9, "", "", "\x1b[31mno\x00pe\x07\nlast\tline"), "environment")
    assert isinstance(found, Failed)
    assert found.reason.endswith("Its last output: [31mnope\nlast\tline")
