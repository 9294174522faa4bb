"""A kept row as a conversation: one card for each message, with its text, thinking, calls and results. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

__all__ = ["Call", "Card", "cards"]

THINKING: Final = ("reasoning_content", "reasoning", "thinking")
"""Keys of a message with what the model thought before its answer."""
TEXTS: Final = {"user": ("prompt", "question"), "assistant": ("completion", "response", "text")}
"""Columns with the question and the answer in rows without messages. The first one that a row has counts."""
_THOUGHT = re.compile(r"<think(?:ing)?>(.*?)(?:</think(?:ing)?>|\Z)", re.DOTALL)


class Call(NamedTuple):
    """A model's call of a tool, with its arguments as text."""

    name: str
    arguments: str


class Card(NamedTuple):
    """A message. `role`: system, user, assistant, tool, or another one. `about`: the tool, or the call, of a result."""

    role: str
    text: str
    thinking: str = ""
    calls: Sequence[Call] = ()
    about: str = ""


def cards(columns: Mapping[str, Any]) -> list[Card]:
    """Return the messages of a row: those of the column ``messages``, or texts of a prompt and an answer.

    A prompt may be chat messages, too. Empty if the row has none of them. A thing in `messages` that is no message
    becomes a card with its text.
    """
    messages = columns.get("messages")
    if isinstance(messages, list) and messages:
        return [_card(each) for each in messages]
    found: list[Card] = []
    for role, names in TEXTS.items():
        value = next((columns[name] for name in names if columns.get(name)), None)
        if isinstance(value, str):
            found.append(_with_thinking(role, value))
        elif isinstance(value, list) and all(isinstance(each, dict) and "role" in each for each in value):
            found += [_card(each) for each in value]
    return found if any(card.role == "assistant" for card in found) else []


def _card(message: Any) -> Card:
    if not isinstance(message, dict):
        return Card("", _text(message))
    role = str(message.get("role", ""))
    card = _with_thinking(role, _text(message.get("content")))
    thought = next((message[key] for key in THINKING if isinstance(message.get(key), str) and message[key]), "")
    calls = message.get("tool_calls")
    about = message.get("name") or message.get("tool_call_id") or ""
    return card._replace(
        thinking=thought or card.thinking,
        calls=tuple(_call(each) for each in calls) if isinstance(calls, list) else (),
        about=str(about),
    )


def _with_thinking(role: str, text: str) -> Card:
    """Return a card; what an assistant writes between ``<think>`` and ``</think>`` is its thinking."""
    if role != "assistant":
        return Card(role, text)
    thoughts = [found.strip() for found in _THOUGHT.findall(text)]
    return Card(role, _THOUGHT.sub("", text).strip() if thoughts else text, "\n\n".join(filter(None, thoughts)))


def _call(call: Any) -> Call:
    if not isinstance(call, dict):
        return Call("", _text(call))
    function = call.get("function")
    about = function if isinstance(function, dict) else call
    return Call(str(about.get("name", "")), _text(about.get("arguments", "")))


def _text(content: Any) -> str:
    """Return the content of a message as text. Parts that are no text are named."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) and "type" in part for part in content):
        return "\n".join(_parts(content))
    return msgspec.json.encode(content).decode()


def _parts(content: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for part in content:
        text = part.get("text")
        yield text if isinstance(text, str) else f"[{part['type']}]"
