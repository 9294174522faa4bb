"""The abilities of a chat template, found by trying it, and messages in the form that it takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rolemesh_agents.actions import Message, ToolCall, joined
from rolemesh_agents.templates.formats import Format
from rolemesh_agents.templates.rendering import Renderer, TemplateRefusedError

__all__ = ["Abilities", "adapted", "assistant", "find_abilities"]

_TOOL = {"name": "probe0name", "description": "d", "parameters": {"type": "object", "properties": {}}}
_TOOLS = [{"type": "function", "function": _TOOL}]
_USER: Message = {"role": "user", "content": "probe0user"}
_CALL = ToolCall("probe0name", {"probe0key": "probe0value"}, "call00000")
_ANSWER: Message = {"role": "tool", "content": "probe0answer", "tool_call_id": "call00000", "name": "probe0name"}


class Abilities(msgspec.Struct, frozen=True):
    """The abilities of a chat template.

    - `system`: a system message. Otherwise its text opens the first message of the user.
    - `tools`: tools. Otherwise the system message lists them, in the words of `Format.listing`.
    - `calls`: `tool_calls` of an assistant's message. Otherwise they become a part of its content.
    - `answers`: messages of the role `tool`. Otherwise they become messages of the user, in ``<tool_response>``.
    - `consecutive`: two messages of the user without one of the assistant between them. Otherwise they become one.
    - `text_arguments`: the arguments of a call have to be JSON text, not a mapping.
    """

    system: bool
    tools: bool
    calls: bool
    answers: bool
    consecutive: bool
    text_arguments: bool


def find_abilities(renderer: Renderer) -> Abilities:
    """Try a template with short conversations."""

    def writes(wanted: str, *messages: Message, tools: Sequence[Mapping[str, Any]] = ()) -> bool:
        try:
            return wanted in renderer.text(messages, tools, prompt=False)
        except TemplateRefusedError:
            return False

    def writes_call(as_text: bool) -> bool:
        try:
            text = renderer.text([_USER, assistant("", [_CALL], as_text)], _TOOLS, prompt=False)
        except TemplateRefusedError:
            return False
        return "probe0value" in text and "{'probe0key'" not in text

    has_tools = writes("probe0name", _USER, tools=_TOOLS)
    text_arguments = not writes_call(False) and writes_call(True)
    calls = text_arguments or writes_call(False)
    before = (assistant("", [_CALL], text_arguments), {"role": "assistant", "content": "probe0text"})
    answers = any(writes("probe0answer", _USER, turn, _ANSWER, tools=_TOOLS) for turn in before)
    return Abilities(
        system=writes("probe0system", {"role": "system", "content": "probe0system"}, _USER),
        tools=has_tools,
        calls=calls,
        answers=(has_tools or calls) and answers,
        consecutive=writes("probe0second", _USER, {"role": "user", "content": "probe0second"}),
        text_arguments=text_arguments,
    )


def assistant(content: str, calls: Sequence[ToolCall], text_arguments: bool) -> Message:
    """Return a message of the assistant. Without calls it has no `tool_calls`."""
    if not calls:
        return {"role": "assistant", "content": content}
    listed = []
    for call in calls:
        arguments = json.dumps(call.arguments, ensure_ascii=False) if text_arguments else dict(call.arguments)
        listed.append({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
    return {"role": "assistant", "content": content, "tool_calls": listed}


def adapted(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], can: Abilities, form: Format
) -> tuple[list[Message], list[Mapping[str, Any]]]:
    """Return messages and tools in the form that the template takes."""
    found = [_assistant_adapted(_text_only(message), can, form) for message in messages]
    if tools and not can.tools:
        found = _system(found, form.listing(tools))
    if not can.answers:
        found = _answers(found)
    if not can.system and found and found[0]["role"] == "system":
        found = _joined([{**found[0], "role": "user"}, *found[1:2]], "\n\n", lambda m: m["role"] == "user") + found[2:]
    if not can.consecutive:
        found = _joined(found, "\n\n", lambda m: m["role"] == "user")
    return found, list(tools) if can.tools else []


def _text_only(message: Message) -> Message:
    """Return a message whose content is text. Other parts than text are refused."""
    content = message.get("content")
    if not isinstance(content, list):
        return {**message, "content": content or ""}
    parts = [part if isinstance(part, Mapping) else {"type": "text", "text": str(part)} for part in content]
    if others := [str(part.get("type")) for part in parts if "text" not in part]:
        role, kinds = message.get("role"), ", ".join(others)
        raise TemplateRefusedError(f"a message of the role {role} has {kinds}", remedy="give text only")
    texts = (str(part["text"]) for part in parts)
    return {**message, "content": joined(texts, turn=message.get("role") == "assistant")}


def _assistant_adapted(message: Message, can: Abilities, form: Format) -> Message:
    listed = message.get("tool_calls") or ()
    if message.get("role") != "assistant" or not listed:
        return {key: value for key, value in message.items() if key != "tool_calls" or value}
    calls = []
    for each in listed:
        about = each.get("function", each)
        calls.append(ToolCall(about["name"], _arguments(about), str(each.get("id") or "")))
    content = str(message.get("content") or "")
    if can.calls:
        return {**message, **assistant(content, calls, can.text_arguments)}
    written = "\n".join(part for part in (content, form.write(calls)) if part)
    return {**{k: v for k, v in message.items() if k != "tool_calls"}, "content": written}


def _arguments(about: Mapping[str, Any]) -> Mapping[str, Any]:
    given = about.get("arguments") or {}
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, Mapping):
        what = f"the arguments of an earlier call of {about['name']!r} are no JSON object: {str(given)[:80]!r}"
        raise TemplateRefusedError(what, remedy="write the arguments as a JSON object")
    return found


def _system(messages: list[Message], text: str) -> list[Message]:
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _answers(messages: Sequence[Message]) -> list[Message]:
    """Return the answers of tools as messages of the user, one for all that follow each other."""
    found: list[Message] = []
    for message in messages:
        if message["role"] != "tool":
            found.append(message)
            continue
        text = f"<tool_response>\n{message.get('content', '')}\n</tool_response>"
        found.append({"role": "user", "content": text, "tool": True})
    joined = _joined(found, "\n", lambda message: "tool" in message)
    return [{key: value for key, value in message.items() if key != "tool"} for message in joined]


def _joined(messages: Sequence[Message], between: str, chosen: Any) -> list[Message]:
    """Join the contents of chosen messages that follow each other."""
    found: list[Message] = []
    for message in messages:
        if found and chosen(message) and chosen(found[-1]):
            found[-1] = {**found[-1], "content": f"{found[-1]['content']}{between}{message['content']}"}
        else:
            found.append(message)
    return found
