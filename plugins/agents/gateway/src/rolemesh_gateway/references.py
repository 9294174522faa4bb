"""Parts of earlier answers that a request of the Responses API names by their ids, in place of sending them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rolemesh_agents import Message
from rolemesh_gateway.requests import Answer, RefusedError

__all__ = ["CALL", "REASONING", "REFERENCE", "TEXT", "resolved"]

REFERENCE = "reference"
"""Key of a message that stands for a part of an answer. Its value is the part's id."""
REASONING, TEXT, CALL = "rs_{}", "msg_{}", "fc_{}_{}"
"""The ids of an answer's reasoning and text, and of one of its calls: the number of the turn, and of the call in it."""


def resolved(messages: Sequence[Message], answers: Iterable[Answer]) -> list[Message]:
    """Return `messages` with the parts of `answers` in place of their references. Raises `RefusedError`."""
    parts: dict[str, Mapping[str, Any]] = {}
    for answer in answers:
        message = answer.as_message()
        parts[REASONING.format(answer.number)] = {"reasoning_content": answer.reasoning}
        parts[TEXT.format(answer.number)] = {"content": message["content"]}
        for number, call in enumerate(message.get("tool_calls", ())):
            parts[CALL.format(answer.number, number)] = {"tool_calls": [call]}
    found: list[Message] = []
    reasoning = ""
    for message in messages:
        name = message.get(REFERENCE)
        if name is None:
            found.append(message)
            continue
        if name not in parts:
            raise RefusedError(400, f"input: there is no item {name!r} in this conversation", param="input")
        part = parts[name]
        if "reasoning_content" in part:
            reasoning = part["reasoning_content"]
            continue
        calls = [*part.get("tool_calls", ()), *message.get("tool_calls", ())]
        if "content" in part or not found or found[-1]["role"] != "assistant":
            thought = {"reasoning_content": reasoning} if reasoning else {}
            found.append({"role": "assistant", "content": part.get("content", ""), **thought})
            reasoning = ""
        if calls:
            found[-1] = {**found[-1], "tool_calls": [*found[-1].get("tool_calls", ()), *calls]}
    return found
