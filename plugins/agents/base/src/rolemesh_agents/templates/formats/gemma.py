"""The format of Gemma 4: ``<|tool_call>call:name{key:value}<tool_call|>`` with marks instead of quotes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rolemesh_agents.actions import ToolCall
from rolemesh_agents.conversations.tokens import ParsedTurn
from rolemesh_agents.templates.formats.base import Format, Schemas, blocks, skipped
from rolemesh_agents.templates.formats.strict import json_value

__all__ = ["Gemma"]

_QUOTE = '<|"|>'
_HEAD = re.compile(r"\s*call:([^\s{}]+?)\s*(?=\{)")
_KEY = re.compile(r"\s*([^\s:{}\[\],]+)\s*:")
_PLAIN = re.compile(r"\s*([^,{}\[\]]+)")


class Gemma(Format):
    """Gemma 4's calls."""

    name = "gemma"
    signs = ("<|tool_call>call:",)
    reasoning = ("<|channel>thought\n", "<channel|>")

    def parse(self, text: str, schemas: Schemas) -> ParsedTurn:
        """Take a turn apart."""
        return blocks(text, "<|tool_call>", "<tool_call|>", _read)


def _read(text: str, start: int) -> tuple[Sequence[ToolCall], int]:
    if not (head := _HEAD.match(text, start)):
        raise ValueError("the call has no name")
    value, end = _value(text, head.end(), 0)
    return [ToolCall(head[1], value)], end


def _value(text: str, place: int, depth: int) -> tuple[Any, int]:
    if depth > 64:
        raise ValueError("the value is too deep")
    place = skipped(text, place)
    if text.startswith("{", place):
        return _items(text, place + 1, "}", depth)
    if text.startswith("[", place):
        return _items(text, place + 1, "]", depth)
    if text.startswith(_QUOTE, place):
        start = place + len(_QUOTE)
        end = text.index(_QUOTE, start)
        return text[start:end], end + len(_QUOTE)
    if not (found := _PLAIN.match(text, place)):
        raise ValueError("there is no value")
    return json_value(found[1]), found.end()


def _items(text: str, place: int, closing: str, depth: int) -> tuple[Any, int]:
    """Read the items of an object or a list, after its opening bracket."""
    pairs: dict[str, Any] = {}
    listed: list[Any] = []
    while not text.startswith(closing, place := skipped(text, place)):
        if closing == "}":
            if not (key := _KEY.match(text, place)) or key[1] in pairs:
                raise ValueError("a key is missing or occurs twice")
            pairs[key[1]], place = _value(text, key.end(), depth + 1)
        else:
            value, place = _value(text, place, depth + 1)
            listed.append(value)
        place = skipped(text, place)
        if text.startswith(",", place):
            place += 1
        elif not text.startswith(closing, place):
            raise ValueError("the value does not end")
    return (pairs if closing == "}" else listed), place + 1
