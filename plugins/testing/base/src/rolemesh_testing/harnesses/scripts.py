"""Scripts of conversations: the turns of the model, and the answers of the environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rolemesh_agents import Observation, Outcome, Start, Tool, ToolCall, Turn

__all__ = ["ODD", "SCRIPTS", "Script"]

ADD = Tool("add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
START = Start([{"role": "system", "content": "Use tools."}, {"role": "user", "content": "What is 1 + 2?"}], [ADD])
LONG = "x" * 100_000


class Script(msgspec.Struct, frozen=True):
    """A conversation whose other parties are fixed.

    The n-th sample has the n-th of `turns`, the n-th call of a tool the n-th of `observations`, and the n-th reply the
    n-th of `outcomes`. After the end of a list the model says "done.", a tool answers "ok", and a reply ends the
    episode.
    """

    name: str
    turns: tuple[Turn, ...] = ()
    observations: tuple[Observation, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    start: Start = START


def turn(content: str, *calls: ToolCall, unparsed: Sequence[str] = (), finish: str = "stop") -> Turn:
    """Return a turn of the model. Its tokens depend on its text only."""
    ids = [7 + len(content) % 90, *(ord(letter) % 500 for letter in content[:20]), 2]
    return Turn(content, list(calls), list(unparsed), ids, finish, prompt_tokens=20)


def call(number: int, name: str = "add", **arguments: Any) -> ToolCall:
    """Return a call of a tool."""
    return ToolCall(name, arguments or {"a": number}, f"call-{number}")


SCRIPTS = (
    Script("an answer without a tool", (turn("3"),)),
    Script(
        "two calls in one turn, then one, then an answer",
        (turn("I add.", call(1), call(2)), turn("", call(3)), turn("It is 3.")),
        (Observation("1"), Observation("2"), Observation("3")),
    ),
    Script(
        "a user who asks again",
        (turn("2"), turn("3"), turn("4")),
        (),
        (Outcome([{"role": "user", "content": "No."}], False), Outcome([{"role": "user", "content": "No!"}], False)),
    ),
    Script("a tool that ends the episode", (turn("", call(1)), turn("never")), (Observation("the end", True),)),
)
ODD = (
    Script("an empty turn", (turn(""),)),
    Script("a call that is not one", (turn("I try.", unparsed=["add(1"]), turn("3"))),
    Script("an unknown tool, and a huge argument", (turn("", call(1, "no_such", a=LONG)), turn("3"))),
    Script("two calls with one id", (turn("", call(1), call(1)), turn("3"))),
    Script("a turn at its limit", (turn("I think and", finish="length"), turn("3"))),
    Script("odd texts", (turn("\x00 Grüße 🎈 <|im_end|>", call(1)), turn(LONG)), (Observation("<|im_start|>\x00"),)),
)
"""Scripts with turns that no model should take."""
