"""Anthropic's Messages: https://docs.anthropic.com/en/api/messages."""

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
from rolemesh_gateway.requests import Answer, Ask, RefusedError

__all__ = ["HARMLESS", "NOTED", "REFUSED", "MessagesBody", "answer", "events", "parse"]

HARMLESS = (
    "betas", "billing_policy", "cache_control", "diagnostics", "fallback_credit_token", "fallbacks", "inference_geo",
    "metadata", "service_tier", "speed", "user_profile_id", "workspace_id",
)  # fmt: skip
"""Parameters that change nothing that a program could see here."""
REFUSED = {
    "container": "the container would run at Anthropic, not here; leave it out",
    "mcp_servers": "the servers would be called from Anthropic, not from here; leave them out",
}
"""Parameters that ask for something that the gateway does not have."""
NOTED = ("compaction", "context_management")
"""Parameters with an effect in the API, and none here."""
NAMES = {"stop": "stop_sequences", "structured_outputs": "output_config.format"}
"""Names of sampling parameters in this API."""
ID = "msg_"
"""How the ids of answers begin. `Ask.previous` is such an id."""
NOT_CACHED = {
    "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "server_tool_use": None,
    "service_tier": "standard",
}
"""Counts that clients add up without a look whether they are there."""
MESSAGE_KEYS = read_keys("role", "content")
PART_KEYS = read_keys("text", "name", "input", "tool_use_id", "content", "thinking", "signature")
TOOL_KEYS = read_keys("name", "description", "input_schema")
IGNORED_PARTS = ("redacted_thinking",)


class MessagesBody(msgspec.Struct):
    """The parameters that the gateway reads."""

    messages: list[dict[str, Any]]
    model: str
    max_tokens: int
    output_config: dict[str, Any] | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    thinking: dict[str, Any] | None = None
    thread: dict[str, Any] | None = None
    top_k: int | None = None
    top_p: float | None = None


def parse(body: Mapping[str, Any], again: bool = False) -> Ask:
    """Return the request. Raises `RefusedError`."""
    given = checked(body, MessagesBody)
    refuse(body, REFUSED)
    unknown = unknown_of(body, MessagesBody, (*HARMLESS, *REFUSED)) + _noted(given)
    messages: list[Message] = []
    if system := text_of(given.system or "", "system"):
        messages.append({"role": "system", "content": system})
    for number, each in enumerate(given.messages):
        messages += _messages(each, f"messages[{number}]")
    params = {name: value for name in ("temperature", "top_k", "top_p") if (value := getattr(given, name)) is not None}
    params["max_tokens"] = given.max_tokens
    if given.stop_sequences:
        params["stop"] = given.stop_sequences
    wanted = given.output_config or {}
    unknown += [f"output_config.{key}" for key, value in wanted.items() if key != "format" and value is not None]
    if structure := structure_of(wanted.get("format"), "output_config.format"):
        params["structured_outputs"] = structure
    tools = [_tool(each, f"tools[{number}]") for number, each in enumerate(given.tools or ())]
    previous = _continued(given.thread)
    choice = given.tool_choice or {}
    offered = None if previous and not tools else tools
    if forces(choice.get("type"), ("any", "tool"), choice.get("name"), offered):
        unknown.append("tool_choice")
    return Ask(
        given.model,
        history(messages),
        tools,
        checked_params(params, NAMES),
        NAMES,
        bool(given.stream),
        unknown=unknown,
        previous=previous,
        inherits=bool(previous),
        kept_as=ID if given.thread is not None else "",
        calls=choice.get("type") != "none",
        again=again,
    )


def answer(ask: Ask, given: Answer) -> dict[str, Any]:
    """Return the body of the answer."""
    return _head(ask, given, _blocks(given), _stopped(given), given.completion_tokens)


def events(ask: Ask, given: Answer) -> Iterator[tuple[str, Any]]:
    """Yield the events of a stream, each with its name."""

    def event(kind: str, **told: Any) -> tuple[str, Any]:
        return kind, {"type": kind, **told}

    yield event("message_start", message=_head(ask, given, [], {"stop_reason": None, "stop_sequence": None}, 0))
    for number, block in enumerate(_blocks(given)):
        if block["type"] == "text":
            yield event("content_block_start", index=number, content_block={"type": "text", "text": ""})
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
        elif block["type"] == "thinking":
            yield event("content_block_start", index=number, content_block={**block, "thinking": "", "signature": ""})
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        else:
            yield event("content_block_start", index=number, content_block={**block, "input": {}})
            deltas = [{"type": "input_json_delta", "partial_json": each} for each in pieces(dumped(block["input"]))]
        for delta in deltas:
            yield event("content_block_delta", index=number, delta=delta)
        yield event("content_block_stop", index=number)
    usage = {
        "input_tokens": given.prompt_tokens,
        "output_tokens": given.completion_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
    yield event("message_delta", delta=_stopped(given), usage=usage)
    yield event("message_stop")


def _head(ask: Ask, given: Answer, blocks: list[Any], stopped: dict[str, Any], tokens: int) -> dict[str, Any]:
    usage = {"input_tokens": given.prompt_tokens, "output_tokens": tokens, **NOT_CACHED}
    told = {"id": f"{ID}{given.number}", "type": "message", "role": "assistant", "model": ask.model}
    return {**told, "content": blocks, **stopped, "stop_details": None, "container": None, "usage": usage}


def _stopped(given: Answer) -> dict[str, Any]:
    if given.stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": given.stop}
    reason = {"stop": "end_turn", "length": "max_tokens", "calls": "tool_use"}[given.finish]
    return {"stop_reason": reason, "stop_sequence": None}


def _blocks(given: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if given.reasoning:
        blocks.append({"type": "thinking", "thinking": given.reasoning, "signature": f"rolemesh{given.number}"})
    if given.content.strip() or (not given.calls and (given.content or not blocks)):
        blocks.append({"type": "text", "text": given.content})
    for each in given.calls:
        blocks.append({"type": "tool_use", "id": each.id, "name": each.name, "input": dict(each.arguments)})
    return blocks


def _noted(given: MessagesBody) -> list[str]:
    """Return the values of a request that have an effect in the API, and none here."""
    found = []
    if (given.tool_choice or {}).get("disable_parallel_tool_use"):
        found.append("tool_choice.disable_parallel_tool_use")
    if given.thinking is not None and given.thinking.get("type") != "disabled":
        found.append("thinking")
    for each in given.tools or ():
        found += noted_keys(each, "tools[]", TOOL_KEYS)
    found += noted_parts(given.system, "system")
    for message in given.messages:
        found += noted_keys(message, "messages[]", MESSAGE_KEYS)
        if _text_after_call(message):
            found.append("messages[].content[].tool_use")
        for part in message["content"] if isinstance(message.get("content"), list) else ():
            if isinstance(part, dict) and part.get("type") in IGNORED_PARTS:
                found.append("messages[].content[].thinking")
            else:
                found += noted_parts([part], "messages[]", PART_KEYS)
                inner = part.get("content") if isinstance(part, dict) else None
                found += noted_parts(inner, "messages[].content[]")
    return found


def _text_after_call(message: dict[str, Any]) -> bool:
    """Return whether a message of the assistant has a text after a call. Chat templates write the text first."""
    parts = message.get("content")
    kinds = [each.get("type") for each in parts if isinstance(each, dict)] if isinstance(parts, list) else []
    return message.get("role") == "assistant" and "tool_use" in kinds and "text" in kinds[kinds.index("tool_use") :]


def _continued(thread: dict[str, Any] | None) -> str:
    """Return the id of the answer that a request of a thread continues, or "". A thread keeps system and tools."""
    kind = None if thread is None else thread.get("type")
    if thread is None or kind == "create":
        return ""
    previous = thread.get("previous_message_id")
    if kind != "continue" or not isinstance(previous, str) or not previous:
        raise RefusedError(400, "thread: neither a new one nor the continuation of a message", param="thread")
    return previous


def _tool(given: dict[str, Any], where: str) -> Tool:
    if given.get("type") not in (None, "custom"):
        raise wrong_tool(given["type"], where)
    return tool_of(given.get("name"), given.get("description"), given.get("input_schema"), where)


def _messages(given: dict[str, Any], where: str) -> Iterator[Message]:
    """The messages of one message of the API: answers of tools are parts of a message there."""
    role, content = given.get("role"), given.get("content")
    turn = role == "assistant"
    parts = content if isinstance(content, list) else [{"type": "text", "text": text_of(content, where, turn)}]
    if not all(isinstance(each, dict) for each in parts):
        raise RefusedError(400, f"{where}: parts of a content must be objects", param=where)
    others = ("tool_use", "tool_result", "thinking", *IGNORED_PARTS)
    texts = [each for each in parts if each.get("type") not in others]
    if role == "user":
        results = [each for each in parts if each.get("type") == "tool_result"]
        if results != parts[: len(results)]:
            reason = f"{where}: a tool_result follows another part; send all of them first, and the texts after them"
            raise RefusedError(400, reason, param=where)
        for part in results:
            told = text_of(part.get("content", ""), where)
            used = id_of(part.get("tool_use_id"), "tool_use_id", where)
            yield {"role": "tool", "content": told, "tool_call_id": used}
        if texts or not parts:
            yield {"role": "user", "content": text_of(texts, where)}
    elif role == "assistant":
        message: Message = {"role": "assistant", "content": text_of(texts, where, turn)}
        thoughts = [str(each.get("thinking") or "") for each in parts if each.get("type") == "thinking"]
        if any(thoughts):
            message["reasoning_content"] = "".join(thoughts)
        uses = [each for each in parts if each.get("type") == "tool_use"]
        if uses:
            message["tool_calls"] = [
                called(id_of(each.get("id"), "id", where), each.get("name"), each.get("input"), where) for each in uses
            ]
        yield message
    elif role == "system":
        yield {"role": "system", "content": text_of(content, where)}
    else:
        raise RefusedError(400, f"{where}: role {role!r} is neither user nor assistant", param=where)
