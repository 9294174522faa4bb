"""The base of formats: how models of a family write their calls of tools."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from rolemesh_agents.actions import ToolCall
from rolemesh_agents.conversations.tokens import ParsedTurn
from rolemesh_agents.templates.formats.strict import call_arguments

__all__ = ["Format", "Schemas", "blocks", "call_of", "dumped", "skipped"]

_MOST = 100
_LISTING = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""

Schemas = Mapping[str, Mapping[str, Any]]
"""The JSON schemas of the arguments, by the name of the tool."""


class Format(ABC):
    """A way to write calls. The methods are pure, and no text of a model makes them raise."""

    name: ClassVar[str]
    signs: ClassVar[Sequence[str]] = ()
    """Texts that are all in the chat templates of the models that use this format."""
    reasoning: ClassVar[tuple[str, str]] = ("<think>", "</think>")
    """The marks around the model's reasoning."""

    @abstractmethod
    def parse(self, text: str, schemas: Schemas) -> ParsedTurn:
        """Take the text of a turn apart, control tokens included, without its last stop token.

        The content keeps all white space before the first call. White space between and after calls belongs to them.
        """

    def plain(self, text: str) -> ParsedTurn:
        """Take the text of a turn apart whose model was offered no tools: nothing in it is a call."""
        return ParsedTurn(text)

    def listing(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Return what the system message says of tools, for templates that take none: the words of Hermes and Qwen."""
        return _LISTING.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))

    def write(self, calls: Sequence[ToolCall]) -> str:
        """Return calls as the model writes them, for templates that take no `tool_calls`."""
        return "\n".join(f"<tool_call>\n{dumped(call)}\n</tool_call>" for call in calls)


def dumped(call: ToolCall) -> str:
    """Return a call as a JSON object with `name` and `arguments`."""
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


def call_of(value: Any) -> ToolCall:
    """Return the call that a JSON value means: an object with a name, and with `arguments` or `parameters`.

    Raises `ValueError` for all others.
    """
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict):
        raise ValueError("a call is an object")
    name = value.get("name", value.get("tool_name"))
    if not isinstance(name, str) or not name:
        raise ValueError("the call has no name")
    if value.keys().isdisjoint(("arguments", "parameters")):
        raise ValueError("the call has no arguments")
    return ToolCall(name, call_arguments(value.get("arguments", value.get("parameters"))))


def blocks(
    text: str, opening: str, closing: str, read: Callable[[str, int], tuple[Sequence[ToolCall], int]]
) -> ParsedTurn:
    """Take text with blocks of calls apart.

    `read` takes the text and the place after `opening`. It returns the calls there and the place after them, or raises
    `ValueError`. A block that it refuses ends at `closing`, at the next `opening`, or at the end.
    After 100 such blocks the rest of the text is one, so that the work grows with the length only.
    """
    content: list[str] = []
    calls: list[ToolCall] = []
    unparsed: list[str] = []
    start = 0
    while (found := text.find(opening, start)) >= 0:
        content.append(text[start:found])
        inside = found + len(opening)
        try:
            if len(unparsed) == _MOST:
                raise ValueError("there are too many blocks that are no calls")
            new, end = read(text, inside)
            start = _after(text, end, opening, closing)
            calls += new
        except (ValueError, RecursionError):
            ends = [text.find(mark, inside) for mark in (closing, opening) if mark and len(unparsed) < _MOST]
            end = min((place for place in ends if place >= 0), default=len(text))
            start = end + len(closing) if closing and text.startswith(closing, end) else end
            unparsed.append(text[found:start])
    content.append(text[start:])
    outside = [content[0], *(each for each in content[1:] if each.strip())]
    return ParsedTurn("".join(outside), tuple(calls), tuple(unparsed))


def skipped(text: str, place: int) -> int:
    """Return the place of the first character that is no space, from `place` on."""
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _after(text: str, end: int, opening: str, closing: str) -> int:
    """Return the place after a block that was read up to `end`. Only its closing mark may follow, if there is one."""
    place = skipped(text, end)
    if closing and text.startswith(closing, place):
        return place + len(closing)
    if closing and place < len(text) and not text.startswith(opening, place):
        raise ValueError("there is more text in the block")
    return end
