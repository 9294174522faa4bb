"""The decision which sample of a conversation a request continues. Pure; it compares messages, never tokens."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from rolemesh_agents import Message, Tool
from rolemesh_agents.actions import joined

__all__ = ["Begin", "Contexts", "Continue", "Repeat"]

REASONED = "</think>"
"""The end of reasoning that is a part of a turn's text."""
APPENDED = ("user", "tool")
"""The roles of messages that may follow a turn of the model in the same sample."""


class Continue(msgspec.Struct, frozen=True):
    """The request continues `sample` with `new` messages, perhaps none."""

    sample: int
    new: Sequence[Message]


class Repeat(msgspec.Struct, frozen=True):
    """The client has lost the answer to its last request and asks again: turn `number` is the answer."""

    number: int


class Begin(msgspec.Struct, frozen=True):
    """The request continues no sample. `reason` says how it differs from the nearest one; "" for a new subject.

    A new subject has no turn of the model: the first request of a sub-agent, also with a system prompt or a question
    that others have, or a context that the program has made short. Turns that a program has written itself, as
    examples, are none of the model's.
    """

    reason: str = ""


class Contexts:
    """The samples of a conversation, each as digests of its messages and tools.

    Two messages are equal if role, text, and calls of tools are equal. These differences are ignored, because clients
    make them and no sampled token depends on them: white space at both ends of the text; null, missing and empty
    content; one text or its parts; the ids of calls, as long as each answer refers to the same call; the order of keys
    and the white space in arguments; ``developer`` for ``system``; all other keys of a message; the text of `stop` at
    the end of a turn, which the API leaves out and some clients put back; the reasoning at the begin of a turn, up to
    ``</think>``, which some clients leave out.
    """

    def __init__(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        self._samples = [_Sample(_tools(tools), _digests(messages))]
        self._turns: set[bytes] = set()
        """The digests of all turns of the model."""
        self._placed: tuple[Sequence[Message], list[bytes]] | None = None
        """The messages of the last request and their digests, until `forget`."""

    def place(
        self, messages: Sequence[Message], tools: Sequence[Tool], again: bool = False
    ) -> Continue | Repeat | Begin:
        """Return the request's place."""
        given, offered = _digests(messages), _tools(tools)
        self._placed = messages, given
        mine = [(number, each) for number, each in enumerate(self._samples) if each.tools == offered]
        if again:
            for _, each in reversed(mine):
                if each.turn is not None and each.digests[:-1] == given:
                    return Repeat(each.turn)
        best: tuple[int, _Sample] | None = None
        for number, each in mine:
            if _continues(each, given, messages) and (best is None or len(each.digests) >= len(best[1].digests)):
                best = (number, each)
        if best is not None:
            return Continue(best[0], list(messages[len(best[1].digests) :]))
        return Begin(self._difference(messages, given, offered))

    def began(self, sample: int, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        """Note that `sample` has begun with these messages; samples are numbered in their order."""
        if sample != len(self._samples):
            raise ValueError(f"sample {sample} does not follow {len(self._samples) - 1}")
        self._samples.append(_Sample(_tools(tools), self._digests_of(messages)))

    def answered(self, sample: int, messages: Sequence[Message], answer: Message, number: int, stop: str = "") -> None:
        """Note turn `number`: the `answer` to all `messages` of `sample`, as the client has received it.

        `stop`: the text at which the answer was cut. It is a part of the sampled turn.
        """
        mine = self._samples[sample]
        told = _digests([answer])[0]
        mine.digests, mine.turn = [*self._digests_of(messages), told], number
        mine.first = mine.first or len(mine.digests) - 1
        self._turns.add(told)
        text = answer["content"]
        _, reasoned, rest = text.partition(REASONED)
        others = [*([text + stop] if stop else ()), *([rest] if reasoned else ())]
        mine.others = _digests([{**answer, "content": each} for each in others])

    def forget(self) -> None:
        """Forget the messages of the last request."""
        self._placed = None

    def _digests_of(self, messages: Sequence[Message]) -> list[bytes]:
        placed = self._placed
        return placed[1] if placed is not None and placed[0] is messages else _digests(messages)

    def _difference(self, messages: Sequence[Message], given: Sequence[bytes], offered: bytes) -> str:
        if all(each["role"] != "assistant" for each in messages):
            return ""
        nearest = max(
            (each for each in self._samples if each.first), key=lambda s: _common(s.digests, given), default=None
        )
        if nearest is None:
            return ""
        common = _common(nearest.digests, given)
        if common < nearest.first and self._turns.isdisjoint(given):
            return ""
        if nearest.tools != offered:
            return "the tools have changed"
        if common == len(nearest.digests):
            other = (place for place in range(common, len(given)) if messages[place]["role"] not in APPENDED)
            return f"message {next(other, common)} is neither the user's nor a tool's"
        return f"message {common} has changed" if common < len(given) else f"messages from {common} on are missing"


class _Sample(msgspec.Struct):
    tools: bytes
    digests: list[bytes]
    turn: int | None = None
    """The number of the turn at the end; None before the first turn."""
    first: int = 0
    """The place of the first turn; 0 before it."""
    others: Sequence[bytes] = ()
    """Digests of the turn at the end in other forms: with the stop text, and without its reasoning."""


def _continues(sample: _Sample, given: Sequence[bytes], messages: Sequence[Message]) -> bool:
    size = len(sample.digests)
    same = list(given[:size]) == sample.digests
    last = given[size - 1] if len(given) >= size else b""
    restored = last in sample.others and list(given[: size - 1]) == sample.digests[:-1]
    if not (same or restored):
        return False
    new = messages[size:]
    if sample.turn is None:
        return not new
    return bool(new) and all(each["role"] in APPENDED for each in new)


def _common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def _digests(messages: Sequence[Message]) -> list[bytes]:
    ids: dict[str, int] = {}
    return [_digest(_plain(message, ids)) for message in messages]


def _tools(tools: Sequence[Tool]) -> bytes:
    return _digest([[tool.name, tool.description, dict(tool.parameters)] for tool in tools])


def _digest(value: Any) -> bytes:
    try:
        text = msgspec.json.encode(value, order="sorted")
    except UnicodeEncodeError:  # a text with half of a surrogate pair
        text = json.dumps(value, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=16).digest()


def _plain(message: Message, ids: dict[str, int]) -> list[Any]:
    """The parts of a message that count. `ids` numbers the calls in the order in which they appear."""
    role = "system" if message["role"] == "developer" else message["role"]
    calls = []
    for call in message.get("tool_calls") or ():
        ids[str(call.get("id", ""))] = len(ids)
        calls.append([call["function"]["name"], _arguments(call["function"].get("arguments"))])
    answered = ids.get(str(message.get("tool_call_id", "")), -1) if role == "tool" else -1
    return [role, _text(message.get("content"), role == "assistant").strip(), calls, answered]


def _text(content: Any, turn: bool) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else joined((str(part.get("text", "")) for part in content), turn)


def _arguments(given: Any) -> Any:
    """Return a call's arguments with their numbers as doubles: JavaScript writes 1.0 as 1."""
    try:
        text = given if isinstance(given, str) else json.dumps(given or {})
        return json.loads(text or "{}", parse_float=_number, parse_int=_number)
    except (TypeError, ValueError, RecursionError):
        return given


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 1 << 63 else value
