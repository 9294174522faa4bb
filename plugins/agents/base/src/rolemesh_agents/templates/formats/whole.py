"""Formats in which the whole turn has a shape: Llama 3's JSON, LFM2's Python, GPT-OSS's harmony."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rolemesh_agents.actions import ToolCall
from rolemesh_agents.conversations.tokens import ParsedTurn
from rolemesh_agents.templates.formats.base import Format, Schemas, blocks, call_of
from rolemesh_agents.templates.formats.strict import json_value, json_value_at, python_calls

__all__ = ["Harmony", "Lfm2", "Llama3"]


class Llama3(Format):
    """A turn that is ``{"name": …, "parameters": …}``, or several with ``;`` between them: Llama 3.1 to 3.3.

    A JSON answer without `parameters` or `arguments` is an answer.
    """

    name = "llama3"
    signs = ("<|eot_id|>", '"parameters": ')
    _between = re.compile(r"[\s;]*")
    _begin = re.compile(r"\s*(?:<\|python_tag\|>\s*)?(?=\{\s*\"(?:name|type|function)\")")
    _arguments = re.compile(r"\"(?:arguments|parameters)\"\s*:")

    def parse(self, text: str, schemas: Schemas) -> ParsedTurn:
        """Take a turn apart."""
        if not (begin := self._begin.match(text)) or not self._arguments.search(text, begin.end()):
            return ParsedTurn(text)
        calls, place = [], begin.end()
        while place < len(text):
            try:
                value, end = json_value_at(text, place)
                about = value.get("function", value) if isinstance(value, dict) else None
                if not isinstance(about, dict) or about.keys().isdisjoint(("arguments", "parameters")):
                    return ParsedTurn(text)
                calls.append(call_of(value))
            except ValueError:
                return ParsedTurn("", tuple(calls), (text[place:],))
            between = self._between.match(text, end)
            place = between.end() if between else end
        return ParsedTurn("", tuple(calls))


class Lfm2(Format):
    """``<|tool_call_start|>[name(key="value")]<|tool_call_end|>``: LFM2."""

    name = "lfm2"
    signs = ("<|tool_list_start|>",)

    def parse(self, text: str, schemas: Schemas) -> ParsedTurn:
        """Take a turn apart."""
        return blocks(text, "<|tool_call_start|>", "<|tool_call_end|>", self._read)

    def write(self, calls: Sequence[ToolCall]) -> str:
        """Return calls as the model writes them."""
        listed = [f"{c.name}({', '.join(f'{key}={value!r}' for key, value in c.arguments.items())})" for c in calls]
        return f"<|tool_call_start|>[{', '.join(listed)}]<|tool_call_end|>"

    @staticmethod
    def _read(text: str, start: int) -> tuple[Sequence[ToolCall], int]:
        end = text.find("<|tool_call_end|>", start)
        end = end if end >= 0 else len(text)
        return [ToolCall(name, arguments) for name, arguments in python_calls(text[start:end])], end


class Harmony(Format):
    """Messages in channels, with calls ``to=functions.name``: GPT-OSS.

    The format: https://cookbook.openai.com/articles/openai-harmony.
    """

    name = "harmony"
    signs = ("<|channel|>", "<|call|>")
    reasoning = ("", "")
    _ends = re.compile(r"<\|(?:start|end|call|return)\|>")
    _to = re.compile(r"\bto=([^\s<]+)")
    _others = ("assistant", "browser", "container", "functions", "python")
    """Receivers that are no function of the request: OpenAI's own tools, and the model."""

    def parse(self, text: str, schemas: Schemas) -> ParsedTurn:
        """Take a turn apart. The channel ``analysis`` is the reasoning."""
        return self._taken(text, True)

    def plain(self, text: str) -> ParsedTurn:
        """See `Format.plain`. A message to a tool is content."""
        return self._taken(text, False)

    def _taken(self, text: str, offered: bool) -> ParsedTurn:
        content: list[str] = []
        reasoning: list[str] = []
        calls: list[ToolCall] = []
        unparsed: list[str] = []
        for piece in self._ends.split(text):
            head, mark, body = piece.partition("<|message|>")
            called = "to=" in head and (mark or "<|channel|>" in head)
            if called and offered:
                try:
                    calls.append(call_of({"name": self._name(head), "arguments": json_value(body)}))
                except ValueError:
                    unparsed.append(piece)
            elif mark:
                (content if called or "<|channel|>analysis" not in head else reasoning).append(body)
            else:
                content.append(piece if piece.strip() != "assistant" else "")
        return ParsedTurn("\n".join(filter(None, content)), tuple(calls), tuple(unparsed), "\n".join(reasoning))

    def _name(self, head: str) -> str:
        """Return the function that a head names, or "". The model leaves ``functions.`` out at times."""
        to = self._to.search(head)
        name = to[1].removeprefix("functions.") if to else ""
        return "" if to and name == to[1] and name.partition(".")[0] in self._others else name
