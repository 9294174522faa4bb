"""Answers are checked before the environment gets them."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from rolemesh_agents import EndReached, Observation, Outcome, ToolCall, Turn
from rolemesh_testing import HarnessConformance

from {{ cookiecutter.__pkg }} import {{ cookiecutter.__class }}


class TestConformance(HarnessConformance):
    """The tests that every harness must pass."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"checks": -1},)


class Talk:
    """A conversation with fixed turns. It notes what the harness does."""

    def __init__(self, *turns: Turn) -> None:
        self.turns, self.done = list(turns), list[Any]()

    async def sample(self) -> Turn:
        return self.turns.pop(0)

    async def call(self, call: ToolCall) -> Observation:
        self.done.append(call.name)
        return Observation("7")

    async def reply(self, content: str) -> Outcome:
        self.done.append(content)
        raise EndReached

    def append(self, messages: Any) -> None:
        self.done += [message["content"] for message in messages]

    def finish(self, reason: str = "") -> None:
        self.done.append(f"finish: {reason}")
        raise EndReached


def said(content: str, *calls: ToolCall, finish: str = "stop", unparsed: tuple[str, ...] = ()) -> Turn:
    return Turn(content, calls, unparsed, (1, 2), finish)


def held(checks: int, *turns: Turn) -> list[Any]:
    """Return the harness's calls in a conversation with these turns."""
    talk: Any = Talk(*turns)
    options = {{ cookiecutter.__class }}.Options(checks=checks, text="Check.")
    harness = {{ cookiecutter.__class }}(options)
    with suppress(EndReached):
        asyncio.run(harness.run(talk))
    return list(talk.done)


@pytest.mark.parametrize(("checks", "expected"), [(0, ["a"]), (1, ["Check.", "b"]), (2, ["Check.", "Check.", "c"])])
def test_an_answer_is_checked_as_often_as_asked(checks: int, expected: list[str]) -> None:
    assert held(checks, said("a"), said("b"), said("c")) == expected


def test_tools_are_called_and_unreadable_calls_are_answered() -> None:
    turn = said("", ToolCall("add", {}, "1"), unparsed=("add(",))
    assert held(0, turn, said("a")) == ["add", "7", "no valid call: add(", "a"]


def test_a_turn_at_its_limit_ends_the_conversation() -> None:
    assert held(0, said("a", finish="length")) == ["finish: the turn is too long"]
