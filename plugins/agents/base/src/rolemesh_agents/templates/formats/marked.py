"""Formats that write the name and the arguments between marks: Qwen Coder, GLM, DeepSeek, Kimi."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rolemesh_agents.actions import ToolCall
from rolemesh_agents.conversations.tokens import ParsedTurn
from rolemesh_agents.templates.formats.base import Format, Schemas, blocks
from rolemesh_agents.templates.formats.schemas import argument_schema, typed
from rolemesh_agents.templates.formats.strict import call_arguments, json_value_at

__all__ = ["DeepSeek", "Glm", "Kimi", "QwenCoder"]

_DEEPSEEK = """\
## Tools
You have access to the following tools:

{tools}
IMPORTANT: ALWAYS adhere to this exact format for tool use:
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>\
{{additional_tool_calls}}<｜tool▁calls▁end｜>

Where:
- `tool_call_name` must be an exact match to one of the available tools
- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema
- For multiple tool calls, chain them directly without separators or spaces"""

_INSIDE = r"(?:(?!</?arg_(?:key|value)>).)*"
"""A key or a value of GLM: text without a mark, since a call that lacks one has other arguments."""


def _described(about: Mapping[str, Any]) -> str:
    parameters = json.dumps(about["parameters"], ensure_ascii=False)
    return f"### {about['name']}\nDescription: {about['description']}\n\nParameters: {parameters}\n"


def _pairs(name: str, pairs: Sequence[tuple[str, str]], schemas: Schemas) -> ToolCall:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("an argument occurs twice")
    about = schemas.get(name, {})
    return ToolCall(name, {key: typed(text, argument_schema(about, key), about) for key, text in pairs})


class QwenCoder(Format):
    """``<tool_call><function=name><parameter=key>value</parameter></function></tool_call>``: Qwen3-Coder and 3.5."""

    name = "qwen-coder"
    signs = ("<function=", "<parameter=")
    _function = re.compile(r"\s*<function=([^<>\s]+)>\n?(.*?)</function>", re.DOTALL)
    _parameter = re.compile(
        r"\s*<parameter=([^<>\s]+)>\n?(.*?)(?:\n?</parameter>|(?:\n|(?<=>))(?=<parameter=[^<>\s]+>\n))\s*", re.DOTALL
    )
    """A value ends at its mark, or, as with vLLM, at a line that begins the next parameter."""

    def parse(self, text: str, schemas: Schemas) -> ParsedTurn:
        """Take a turn apart."""

        def read(text: str, start: int) -> tuple[Sequence[ToolCall], int]:
            calls = []
            while found := self._function.match(text, start):
                pairs, place, start = [], 0, found.end()
                while each := self._parameter.match(found[2], place):
                    pairs.append((each[1], each[2]))
                    place = each.end()
                if found[2][place:].strip():
                    raise ValueError("there is text outside of the parameters")
                calls.append(_pairs(found[1], pairs, schemas))
            if not calls:
                raise ValueError("there is no function")
            return calls, start

        return blocks(text, "<tool_call>", "</tool_call>", read)


class Glm(Format):
    """``<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>``: GLM-4.5 and later."""

    name = "glm"
    signs = ("<arg_key>",)
    _head = re.compile(r"\s*([^<>\s]+)\s*")
    _pair = re.compile(r"\s*<arg_key>(IN)</arg_key>\s*<arg_value>(IN)</arg_value>\s*".replace("IN", _INSIDE), re.DOTALL)

    def parse(self, text: str, schemas: Schemas) -> ParsedTurn:
        """Take a turn apart."""

        def read(text: str, start: int) -> tuple[Sequence[ToolCall], int]:
            if not (head := self._head.match(text, start)):
                raise ValueError("the call has no name")
            pairs, place = [], head.end()
            while each := self._pair.match(text, place):
                pairs.append((each[1], each[2]))
                place = each.end()
            if not text.startswith("</tool_call>", place):
                raise ValueError("the call does not end")
            return [_pairs(head[1], pairs, schemas)], place

        return blocks(text, "<tool_call>", "</tool_call>", read)


class DeepSeek(Format):
    """``<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>``: V3.1, and V3 and R1 with a block of JSON."""

    name = "deepseek"
    signs = ("<｜tool▁call▁begin｜>",)
    _head = re.compile(r"\s*(?:function<｜tool▁sep｜>([^\n<]+)\n```json\n|([^\n<]+)<｜tool▁sep｜>)")
    _rest = re.compile(r"\s*(?:```)?")

    def parse(self, text: str, schemas: Schemas) -> ParsedTurn:
        """Take a turn apart."""
        inner = re.sub(r"<｜tool▁calls▁(begin|end)｜>", "", text)
        return blocks(inner, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", self._read)

    def listing(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Return what the system message says of tools, in the words of the model card of V3.1."""
        return _DEEPSEEK.format(tools="\n".join(_described(tool["function"]) for tool in tools))

    def _read(self, text: str, start: int) -> tuple[Sequence[ToolCall], int]:
        if not (head := self._head.match(text, start)):
            raise ValueError("the call has no name")
        value, end = json_value_at(text, head.end())
        rest = self._rest.match(text, end)
        return [ToolCall((head[1] or head[2]).strip(), call_arguments(value))], rest.end() if rest else end


class Kimi(Format):
    """``<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>``: Kimi K2.

    ``functions.name:0`` is the call's id, by which the template names the answer.
    """

    name = "kimi"
    signs = ("<|tool_call_argument_begin|>",)
    _head = re.compile(r"\s*((?:functions\.)?([^\s:<]+)(?::\d+)?)\s*<\|tool_call_argument_begin\|>")

    def parse(self, text: str, schemas: Schemas) -> ParsedTurn:
        """Take a turn apart."""
        inner = re.sub(r"<\|tool_calls_section_(begin|end)\|>", "", text)
        return blocks(inner, "<|tool_call_begin|>", "<|tool_call_end|>", self._read)

    def _read(self, text: str, start: int) -> tuple[Sequence[ToolCall], int]:
        if not (head := self._head.match(text, start)):
            raise ValueError("the call has no name")
        value, end = json_value_at(text, head.end())
        return [ToolCall(head[2], call_arguments(value), head[1] if ":" in head[1] else "")], end
