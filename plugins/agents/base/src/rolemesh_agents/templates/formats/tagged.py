"""Formats that write each call, or a list of calls, as JSON after a mark: Hermes, Granite, Cohere, Mistral."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from rolemesh_agents.actions import ToolCall
from rolemesh_agents.conversations.tokens import ParsedTurn
from rolemesh_agents.templates.formats.base import Format, Schemas, blocks, call_of, dumped
from rolemesh_agents.templates.formats.strict import call_arguments, json_value_at

__all__ = ["Cohere", "Granite", "Hermes", "Mistral"]


def _listed(text: str, start: int) -> tuple[Sequence[ToolCall], int]:
    value, end = json_value_at(text, start)
    return [call_of(each) for each in (value if isinstance(value, list) else [value])], end


class Hermes(Format):
    """``<tool_call>{"name": …, "arguments": …}</tool_call>``: Hermes, Qwen 2.5 and 3, Granite 4, generic."""

    name = "hermes"
    signs = ("<tool_call>",)

    def parse(self, text: str, schemas: Schemas) -> ParsedTurn:
        """Take a turn apart."""
        return blocks(text, "<tool_call>", "</tool_call>", _listed)


class Granite(Format):
    """``<|tool_call|>[{"name": …, "arguments": …}]``: Granite 3 and Phi-4."""

    name = "granite"
    signs = ("<|tool_call|>",)

    def parse(self, text: str, schemas: Schemas) -> ParsedTurn:
        """Take a turn apart."""
        return blocks(text.replace("<|/tool_call|>", ""), "<|tool_call|>", "", _listed)

    def write(self, calls: Sequence[ToolCall]) -> str:
        """Return calls as the model writes them."""
        return f"<|tool_call|>[{', '.join(map(dumped, calls))}]"


class Cohere(Format):
    """``<|START_ACTION|>[{"tool_name": …, "parameters": …}]<|END_ACTION|>``: Command R7B and A."""

    name = "cohere"
    signs = ("<|START_ACTION|>",)
    reasoning = ("<|START_THINKING|>", "<|END_THINKING|>")

    def parse(self, text: str, schemas: Schemas) -> ParsedTurn:
        """Take a turn apart."""
        return blocks(re.sub(r"<\|(START|END)_RESPONSE\|>", "", text), "<|START_ACTION|>", "<|END_ACTION|>", _listed)

    def write(self, calls: Sequence[ToolCall]) -> str:
        """Return calls as the model writes them."""
        listed = [
            {"tool_call_id": str(place), "tool_name": call.name, "parameters": call.arguments}
            for place, call in enumerate(calls)
        ]
        return f"<|START_ACTION|>{json.dumps(listed, ensure_ascii=False)}<|END_ACTION|>"


class Mistral(Format):
    """``[TOOL_CALLS][{"name": …}]``, and since version 11 ``[TOOL_CALLS]name[ARGS]{…}`` for each call."""

    name = "mistral"
    signs = ("[TOOL_CALLS]",)
    reasoning = ("[THINK]", "[/THINK]")
    _head = re.compile(r"\s*([^\s\[\]{}]+?)(?:\[CALL_ID\]([^\[\]]*))?(?:\[ARGS\])?\s*(?=\{)")
    _id = re.compile(r"[a-zA-Z0-9]{9}")
    """The only ids that Mistral's templates take."""

    def parse(self, text: str, schemas: Schemas) -> ParsedTurn:
        """Take a turn apart."""
        return blocks(text, "[TOOL_CALLS]", "", self._read)

    def _read(self, text: str, start: int) -> tuple[Sequence[ToolCall], int]:
        if head := self._head.match(text, start):
            value, end = json_value_at(text, head.end())
            return [ToolCall(head[1], call_arguments(value), self._known(head[2]))], end
        value, end = json_value_at(text, start)
        listed = value if isinstance(value, list) else [value]
        return [msgspec.structs.replace(call_of(each), id=self._known(each.get("id"))) for each in listed], end

    def _known(self, number: Any) -> str:
        """Return the id that the model has written: in its context, the answer refers to this one."""
        return number if isinstance(number, str) and self._id.fullmatch(number) else ""
