"""OpenAI's Responses: https://platform.openai.com/docs/api-reference/responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from rolemesh_agents import Message, Tool
from rolemesh_gateway.apis.content import (
    called,
    checked,
    checked_params,
    dumped,
    forces,
    history,
    id_of,
    noted_keys,
    noted_parts,
    pieces,
    read_keys,
    refuse,
    structure_of,
    text_of,
    tool_of,
    unknown_of,
    wrong_tool,
)
from rolemesh_gateway.references import CALL, REASONING, REFERENCE, TEXT
from rolemesh_gateway.requests import Answer, Ask, Kept, RefusedError

__all__ = ["HARMLESS", "NOTED", "REFUSED", "ResponsesBody", "answer", "events", "items_of", "parse"]

ID = "resp_"
"""How the ids of answers begin. `Ask.previous` is such an id."""
HARMLESS = (
    "access_programs", "max_tool_calls", "metadata", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "safety_identifier", "service_tier", "user",
)  # fmt: skip
"""Parameters that change nothing that a program could see here."""
REFUSED = {
    "background": "the gateway answers while the client waits; leave it out",
    "conversation": "the gateway does not have it; send previous_response_id",
    "image": "the model writes text only; leave it out",
    "prompt": "the prompt is at OpenAI, not here; send its text",
    "top_logprobs": "the gateway does not give it; leave it out",
}
"""Parameters that ask for something that the gateway does not have."""
NOTED = ("context_management", "moderation", "reasoning")
"""Parameters with an effect in the API, and none here."""
ITEM_KEYS = read_keys("role", "content", "call_id", "name", "arguments", "output")
TOOL_KEYS = read_keys("name", "description", "parameters")
NAMES = {"max_tokens": "max_output_tokens", "structured_outputs": "text.format"}
"""Names of sampling parameters in this API."""
GIVEN = (
    "instructions", "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls", "prompt_cache_key",
    "safety_identifier", "store", "text", "tool_choice", "truncation", "user",
)  # fmt: skip
"""Parameters that the answer repeats."""
EMPTY = dict.fromkeys((
    "access_programs", "completed_at", "conversation", "image", "input_transformations", "instructions",
    "max_output_tokens", "max_tool_calls", "moderation", "prompt", "prompt_cache_diagnostics", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "tool_usage", "user",
))  # fmt: skip
"""Fields of an answer that are null here. Clients read some of them without a look whether they are there."""


class ResponsesBody(msgspec.Struct):
    """The parameters that the gateway reads."""

    input: str | list[dict[str, Any]]
    model: str
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    include: list[str] | None = None
    max_output_tokens: int | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    temperature: float | None = None
    text: dict[str, Any] | None = None
    top_p: float | None = None
    truncation: str | None = None


def parse(body: Mapping[str, Any], again: bool = False) -> Ask:
    """Return the request. Raises `RefusedError`."""
    given = checked(body, ResponsesBody)
    refuse(body, REFUSED)
    if any("logprobs" in each for each in given.include or ()):
        raise RefusedError(400, "include: the gateway gives no log-probabilities; leave them out", param="include")
    unknown = unknown_of(body, ResponsesBody, (*HARMLESS, *REFUSED))
    tools = [_tool(each, f"tools[{number}]") for number, each in enumerate(given.tools or ())]
    choice: Any = given.tool_choice
    named: str | None = None
    if isinstance(choice, dict):
        choice, named = choice.get("type"), choice.get("name")
    if forces(choice, ("required", "function", "allowed_tools"), named, tools):
        unknown.append("tool_choice")
    text = given.text or {}
    unknown += [f"text.{key}" for key, value in text.items() if key != "format" and value not in (None, "medium")]
    if given.parallel_tool_calls is False and given.tools:
        unknown.append("parallel_tool_calls")
    if given.truncation not in (None, "disabled"):
        unknown.append("truncation")
    unknown += noted_keys(given.stream_options, "stream_options", frozenset())
    for each in given.tools or ():
        unknown += noted_keys(each, "tools[]", TOOL_KEYS)
    for each in () if isinstance(given.input, str) else given.input:
        unknown += _noted(each)
    params = {name: value for name in ("temperature", "top_p") if (value := getattr(given, name)) is not None}
    if given.max_output_tokens is not None:
        params["max_tokens"] = given.max_output_tokens
    if structure := structure_of(text.get("format"), "text.format"):
        params["structured_outputs"] = structure
    messages = history(_messages(given.input), "input")
    return Ask(
        given.model,
        messages,
        tools,
        checked_params(params, NAMES),
        NAMES,
        bool(given.stream),
        unknown=unknown,
        echo={name: body[name] for name in GIVEN if body.get(name) is not None},
        refers=any(REFERENCE in each for each in messages),
        lead=[{"role": "system", "content": given.instructions}] if given.instructions else [],
        previous=given.previous_response_id or "",
        kept_as=ID if given.store is not False else "",
        calls=choice != "none",
        again=again,
    )


def answer(ask: Ask, given: Answer) -> dict[str, Any]:
    """Return the body of the answer."""
    return _response(ask, given, "incomplete" if given.finish == "length" else "completed", _items(given))


def events(ask: Ask, given: Answer) -> Iterator[tuple[str, Any]]:
    """Yield the events of a stream, each with its name."""
    for number, (kind, told) in enumerate(_events(ask, given)):
        yield kind, {"type": kind, "sequence_number": number, **told}


def items_of(kept: Kept) -> list[dict[str, Any]]:
    """Return the items that the model has read before an answer, the instructions left out."""
    items: list[dict[str, Any]] = []
    number = kept.answer.number
    for message in kept.messages[:-1]:
        role, text = message["role"], message["content"]
        if role == "tool":
            told = {"type": "function_call_output", "call_id": message["tool_call_id"], "output": text}
            items.append({"id": f"fco_{number}_{len(items)}", **told, "status": "completed"})
            continue
        if thought := message.get("reasoning_content"):
            items.append(_thought(f"rs_{number}_{len(items)}", thought))
        if text or not message.get("tool_calls"):
            part: dict[str, Any] = {"type": "input_text", "text": text}
            if role == "assistant":
                part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            head = {"id": f"msg_{number}_{len(items)}", "type": "message", "role": role, "status": "completed"}
            items.append({**head, "content": [part]})
        for call in message.get("tool_calls") or ():
            about, arguments = call["function"], call["function"]["arguments"]
            told = {"type": "function_call", "call_id": call["id"], "name": about["name"]}
            told["arguments"] = arguments if isinstance(arguments, str) else dumped(arguments)
            items.append({"id": f"fc_{number}_{len(items)}", **told, "status": "completed"})
    return items


def _events(ask: Ask, given: Answer) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "response.created", {"response": _response(ask, given, "in_progress", [])}
    yield "response.in_progress", {"response": _response(ask, given, "in_progress", [])}
    for index, item in enumerate(_items(given)):
        place = {"item_id": item["id"], "output_index": index}
        call = item["type"] == "function_call"
        empty: dict[str, Any] = {"arguments": ""} if call else {"content": []}
        begun = {**item, "status": "in_progress", **empty}
        yield "response.output_item.added", {"output_index": index, "item": begun}
        yield from _call_events(item, place) if call else _text_events(item, place)
        yield "response.output_item.done", {"output_index": index, "item": item}
    ended = answer(ask, given)
    yield f"response.{ended['status']}", {"response": ended}


def _text_events(item: dict[str, Any], place: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    (part,) = item["content"]
    place = {**place, "content_index": 0}
    kind = part["type"]
    more: dict[str, Any] = {"logprobs": []} if "logprobs" in part else {}
    yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
    for piece in pieces(part["text"]):
        yield f"response.{kind}.delta", {**place, "delta": piece, **more}
    yield f"response.{kind}.done", {**place, "text": part["text"], **more}
    yield "response.content_part.done", {**place, "part": part}


def _call_events(item: dict[str, Any], place: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for piece in pieces(item["arguments"]):
        yield "response.function_call_arguments.delta", {**place, "delta": piece}
    told = {**place, "name": item["name"], "arguments": item["arguments"]}
    yield "response.function_call_arguments.done", told


def _response(ask: Ask, given: Answer, status: str, items: list[Any]) -> dict[str, Any]:
    ended = status != "in_progress"
    usage = {
        "input_tokens": given.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": given.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": given.prompt_tokens + given.completion_tokens,
    }
    tools = [
        {"type": "function", "name": each.name, "description": each.description, "parameters": dict(each.parameters)}
        | {"strict": False}
        for each in ask.tools
    ]
    return {
        **EMPTY,
        "id": f"{ID}{given.number}",
        "object": "response",
        "background": False,
        "created_at": 0,  # no clock: a program that is started again must see the same answers
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "metadata": {},
        "model": ask.model,
        "output": items,
        "parallel_tool_calls": True,
        "previous_response_id": ask.previous or None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": True,
        "temperature": ask.params.get("temperature", 1.0),
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": tools,
        "top_logprobs": 0,
        "truncation": "disabled",
        "top_p": ask.params.get("top_p", 1.0),
        "usage": usage if ended else None,
        **ask.echo,
    }


def _items(given: Answer) -> list[dict[str, Any]]:
    status = "incomplete" if given.finish == "length" else "completed"
    items: list[dict[str, Any]] = []
    if given.reasoning:
        items.append(_thought(REASONING.format(given.number), given.reasoning) | {"status": status})
    if given.content.strip() or (not given.calls and (given.content or not items)):
        part = {"type": "output_text", "text": given.content, "annotations": [], "logprobs": []}
        told = {"id": TEXT.format(given.number), "type": "message", "role": "assistant"}
        items.append({**told, "status": status, "content": [part]})
    for number, each in enumerate(given.calls):
        told = {"id": CALL.format(given.number, number), "type": "function_call", "call_id": each.id}
        items.append({**told, "name": each.name, "status": status, "arguments": dumped(each.arguments)})
    return items


def _thought(name: str, text: str) -> dict[str, Any]:
    """Return reasoning as an item."""
    told: dict[str, Any] = {"id": name, "type": "reasoning", "summary": [], "encrypted_content": None}
    return {**told, "content": [{"type": "reasoning_text", "text": text}], "status": "completed"}


def _tool(given: dict[str, Any], where: str) -> Tool:
    if given.get("type") != "function":
        raise wrong_tool(given.get("type"), where)
    return tool_of(given.get("name"), given.get("description"), given.get("parameters"), where)


def _noted(item: dict[str, Any]) -> list[str]:
    """Return the keys of an item that have no effect here."""
    if item.get("type") == "reasoning":
        return [] if _thoughts(item) else ["input[].reasoning"]
    parts = [key for name in ("content", "output") for key in noted_parts(item.get(name), "input[]")]
    return noted_keys(item, "input[]", ITEM_KEYS) + parts


def _messages(given: str | list[dict[str, Any]]) -> list[Message]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[Message] = []
    thought = ""
    for number, item in enumerate(given):
        where = f"input[{number}]"
        # An item with an id and nothing else is a reference, too.
        kind = item.get("type") or ("item_reference" if item.keys() <= {"id", "type"} else "message")
        if kind == "message":
            role = item.get("role")
            _add(messages, role, text_of(item.get("content"), where, turn=role == "assistant"), where)
        elif kind == "function_call":
            call_id = id_of(item.get("call_id"), "call_id", where)
            call = called(call_id, item.get("name"), item.get("arguments"), where)
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            told = text_of(item.get("output"), where)
            call_id = id_of(item.get("call_id"), "call_id", where)
            messages.append({"role": "tool", "content": told, "tool_call_id": call_id})
        elif kind == "item_reference":
            messages.append({"role": "assistant", "content": "", REFERENCE: str(item.get("id") or "")})
        elif kind == "reasoning":
            thought = _thoughts(item)
            continue
        else:
            raise RefusedError(400, f"{where}: the gateway does not know items of type {kind!r}", param=where)
        if thought and messages[-1]["role"] == "assistant":
            messages[-1] = {**messages[-1], "reasoning_content": thought}
        thought = ""
    return messages


def _thoughts(item: Mapping[str, Any]) -> str:
    """Return the text of an item of reasoning; "" if it has none that the model could read."""
    parts = item.get("content")
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "".join(text for text in texts if isinstance(text, str))


def _add(messages: list[Message], role: Any, text: str, where: str) -> None:
    if role not in ("system", "developer", "user", "assistant"):
        raise RefusedError(400, f"{where}: role {role!r} is none of system, user, assistant", param=where)
    messages.append({"role": "system" if role == "developer" else role, "content": text})
