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
    """A message. `role`: system, user, assistant, tool, or another one. `about`: the tool, or the call, of a result.

    `example`: it belongs to an example in the prompt.
    """

    role: str
    text: str
    thinking: str = ""
    calls: Sequence[Call] = ()
    about: str = ""
    example: bool = False


def cards(columns: Mapping[str, Any]) -> list[Card]:
    """Return the messages of a row: those of the column ``messages``, or texts of a prompt and an answer.

    A prompt may be chat messages, too. Empty if the row has none of them. A thing in `messages` that is no message
    becomes a card with its text. The column ``turns`` says how many of the assistant's messages the model sampled: the
    last ones. If messages end with a question, the answer is in a column of its own, and it alone was sampled.
    """
    messages, turns = columns.get("messages"), columns.get("turns")
    if isinstance(messages, list) and messages:
        found = [_card(each) for each in messages]
        if isinstance(turns, int):
            return _marked(found, turns)
        answer = [] if found[-1].role == "assistant" else _texts(columns, "assistant")
        return _marked(found + answer, len(answer)) if answer else found
    found = [card for role in TEXTS for card in _texts(columns, role)]
    return _marked(found, 1) if any(card.role == "assistant" for card in found) else []


def _texts(columns: Mapping[str, Any], role: str) -> list[Card]:
    value = next((columns[name] for name in TEXTS[role] if columns.get(name)), None)
    if isinstance(value, str):
        return [_with_thinking(role, value)]
    if not isinstance(value, list) or not all(isinstance(each, dict) and "role" in each for each in value):
        return []
    return [_card(each) for each in value]


def _marked(found: list[Card], sampled: int) -> list[Card]:
    """Return the messages; those up to the last answer that is not among the `sampled` ones are examples."""
    answers = [at for at, card in enumerate(found) if card.role == "assistant"]
    given = answers[: max(0, len(answers) - sampled)]
    end = given[-1] + 1 if given else 0
    return [card._replace(example=at < end and card.role != "system") for at, card in enumerate(found)]


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
