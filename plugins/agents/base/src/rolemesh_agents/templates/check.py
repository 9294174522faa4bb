"""A check of a chat template: whether conversations with it are token-exact, and what differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rolemesh_agents.actions import Message, Tool, ToolCall
from rolemesh_agents.templates.abilities import assistant
from rolemesh_agents.templates.rendering import TemplateRefusedError
from rolemesh_agents.templates.template import Template

__all__ = ["SCENARIOS", "Finding", "compare", "examine"]

_ADD = Tool(
    "add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
)
_SYSTEM: Message = {"role": "system", "content": "Answer briefly."}
_ASK: Message = {"role": "user", "content": "What is 2 + 3?"}
_CALLS = (ToolCall("add", {"a": 2, "b": 3}, "call00000"), ToolCall("add", {"a": 5, "b": 1}, "call00001"))
_ANSWERS: tuple[Message, ...] = tuple(
    {"role": "tool", "name": "add", "tool_call_id": call.id, "content": str(sum(call.arguments.values()))}
    for call in _CALLS
)
_SAY: Message = {"role": "assistant", "content": "It is 5."}
_MORE: Message = {"role": "user", "content": "And plus 1?"}

SCENARIOS: dict[str, tuple[list[Message], tuple[Tool, ...]]] = {
    "messages": ([_SYSTEM, _ASK, _SAY, _MORE, _SAY, _MORE], ()),
    "one tool": ([_ASK, assistant("", _CALLS[:1], False), _ANSWERS[0], _SAY, _MORE], (_ADD,)),
    "two turns with tools": (
        [_ASK, assistant("", _CALLS[:1], False), _ANSWERS[0], assistant("", _CALLS[1:], False), _ANSWERS[1]],
        (_ADD,),
    ),
    "two tools in a turn": ([_ASK, assistant("", _CALLS, False), *_ANSWERS, _SAY, _MORE], (_ADD,)),
    "a tool after text": ([_ASK, assistant("I add them.", _CALLS[:1], False), _ANSWERS[0]], (_ADD,)),
    "reasoning": ([_ASK, {**_SAY, "reasoning_content": "2 and 3 make 5"}, _MORE], ()),
    "reasoning before a tool": (
        [_ASK, {**assistant("", _CALLS[:1], False), "reasoning_content": "I need a sum"}, _ANSWERS[0]],
        (_ADD,),
    ),
}
"""Short conversations by name, each with its tools."""


class Finding(msgspec.Struct, frozen=True):
    """The result of one scenario.

    - `state`: "exact"; "differs" where the template changes earlier turns, so the conversation keeps what was sampled;
      "refused" where the template does not take the conversation.
    - `kept`, `rendered`: the texts around the first difference, in the conversation and in the template's rendering.
    """

    scenario: str
    state: str
    kept: str = ""
    rendered: str = ""
    reason: str = ""


def examine(tokenizer: Any, template: Template) -> list[Finding]:
    """Hold each scenario with `template`, and compare it with the template's rendering of the whole conversation."""
    found = []
    for name, (messages, tools) in SCENARIOS.items():
        try:
            found.append(_judged(name, tokenizer, *compare(tokenizer, template, messages, tools)))
        except TemplateRefusedError as error:
            found.append(Finding(name, "refused", reason=error.what))
    return found


def compare(
    tokenizer: Any, template: Template, messages: Sequence[Message], tools: Sequence[Tool] = ()
) -> tuple[list[int], list[int]]:
    """Return the tokens of a conversation, turn by turn, and those of the template's rendering of the whole.

    Both end before the model's next turn. A sampled turn is what the template writes for it when it is the last one, up
    to its stop token.
    """
    turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    kept = template.opening(messages[: turns[0]], tools)
    for turn, following in zip(turns, [*turns[1:], len(messages)], strict=True):
        sampled = _sampled(tokenizer, template, messages[: turn + 1], tools)
        after = template.increment(sampled, messages[turn + 1 : following], tools)
        kept += sampled + after
    return kept, _encoded(tokenizer, template.whole(messages, tools, prompt=True))


def _sampled(tokenizer: Any, template: Template, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
    """Return the last message as the model samples it."""
    before = template.whole(messages[:-1], tools, prompt=True)
    header = before.removeprefix(template.whole(messages[:-1], tools))
    text = template.whole(messages, tools)
    if text.startswith(before):
        turn = _encoded(tokenizer, text[len(before) :])
    elif header not in ("", before) and header in text:
        turn = _encoded(tokenizer, text.rpartition(header)[2])
    else:
        prompt, numbers = _encoded(tokenizer, before), _encoded(tokenizer, text)
        turn = numbers[_shared(prompt, numbers) :]
    return turn[: next((place + 1 for place, number in enumerate(turn) if number in template.stop_token_ids), None)]


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common begin."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _encoded(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def _judged(name: str, tokenizer: Any, kept: list[int], rendered: list[int]) -> Finding:
    if kept == rendered:
        return Finding(name, "exact")
    place = _shared(kept, rendered)
    around, other = (tokenizer.decode(numbers[max(0, place - 8) : place + 16]) for numbers in (kept, rendered))
    same = tokenizer.decode(kept) == tokenizer.decode(rendered)
    return Finding(name, "differs", around, other, "the same text in other tokens" if same else "")
