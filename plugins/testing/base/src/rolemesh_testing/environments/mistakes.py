"""Mistakes of a model: calls and replies that an environment answers, and does not raise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from rolemesh_agents import Tool, ToolCall
from rolemesh_testing.environments.drawing import drawn

__all__ = ["mistaken_calls", "mistaken_replies"]

LONG = "x" * 100_000
WRONG: tuple[Any, ...] = (None, [], {"a": [1, {}]}, -1, True, "", "\x00 Grüße 🎈 <|im_end|>", LONG)


def mistaken_calls(tools: Sequence[Tool]) -> Iterator[ToolCall]:
    """Yield wrong calls: of unknown tools, and of `repeatable` ones with arguments that are missing or wrong."""
    for name in ("", "no_such_tool", "__init__", "close", "Grüße"):
        yield ToolCall(name, {}, "wrong")
    for tool in (tool for tool in tools if tool.repeatable):
        right = drawn(tool.parameters, Random(0))
        yield ToolCall(tool.name, {}, "missing")
        yield ToolCall(tool.name, {**right, "no_such_argument": 1}, "more")
        for argument in tool.parameters.get("properties", {}):
            yield from (ToolCall(tool.name, {**right, argument: wrong}, "wrong") for wrong in WRONG)


def mistaken_replies() -> Iterator[str]:
    """Yield texts that no model should write."""
    yield from ("", " \n", "\x00 Grüße 🎈 <|im_end|>", "<tool_call>{", LONG)
