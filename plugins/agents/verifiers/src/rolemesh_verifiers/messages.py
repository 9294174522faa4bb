"""Chat messages of verifiers as rolemesh takes them, and what a request adds to the one before. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rolemesh_agents import AgentError, Message, Tool, ToolCall

__all__ = ["Asked", "added", "asked", "completion", "spoken"]

REMEDY = (
    "run it as a program of the harness `program` (rolemesh-gateway), which lets a conversation have several samples"
)


class Asked(msgspec.Struct, frozen=True):
    """A request of verifiers to the model."""

    messages: Sequence[Message]
    tools: Sequence[Tool]


def asked(body: Mapping[str, Any], once: Sequence[str]) -> Asked:
    """Return a request of the Chat Completions API. `once`: the names of tools that must not be repeated.

    Raises `AgentError` for messages that are not text, and for a body in another form.
    """
    try:
        return Asked(
            [_plain(each) for each in body["messages"]], [_tool(each, once) for each in body.get("tools") or ()]
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        what = f"the environment asks for a turn in another form than Chat Completions: {type(error).__name__}: {error}"
        raise AgentError(
            what, remedy="mend the request in the environment's code, or use verifiers' own client"
        ) from error


def added(before: Asked, turn: Message, now: Asked) -> list[Message]:
    """Return the messages of `now` after those of `before` and the model's `turn`.

    Raises `AgentError` if `now` does not continue `before`, since the model's tokens then fit no more.
    """
    count = len(before.messages)
    same = list(now.messages[:count]) == list(before.messages) and len(now.messages) > count
    if not same or not _equal(now.messages[count], turn):
        what = "the environment has changed earlier messages of the conversation, or begins another one"
        raise AgentError(what, remedy=REMEDY)
    if now.tools != before.tools:
        raise AgentError("the environment has changed the model's tools within the conversation", remedy=REMEDY)
    return list(now.messages[count + 1 :])


def spoken(content: str, calls: Sequence[ToolCall], number: int) -> Message:
    """Return turn `number` of the model as a message. Its calls get ids that are unique in the conversation."""
    message: Message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call-{number}-{at}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
            }
            for at, call in enumerate(calls)
        ]
    return message


def completion(turn: Message) -> dict[str, Any]:
    """Return a turn as the answer of the Chat Completions API. The number of tokens is not known here."""
    reason = "tool_calls" if "tool_calls" in turn else "stop"
    choice = {"index": 0, "message": dict(turn), "finish_reason": reason, "logprobs": None}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    about = {"id": "rolemesh", "object": "chat.completion", "created": 0, "model": "policy"}
    return {**about, "choices": [choice], "usage": usage}


def _tool(offered: Mapping[str, Any], once: Sequence[str]) -> Tool:
    about = offered["function"]
    name, parameters = about["name"], {"type": "object", **(about.get("parameters") or {})}
    return Tool(name, about.get("description") or name, parameters, name not in once)


def _plain(message: Mapping[str, Any]) -> Message:
    """Return the keys that chat templates know, with a text as the content."""
    found: Message = {"role": message["role"], "content": _text(message.get("content"))}
    if message.get("tool_calls"):
        found["tool_calls"] = [
            {"id": each["id"], "type": "function", "function": {"name": name, "arguments": _object(arguments)}}
            for each in message["tool_calls"]
            for name, arguments in [(each["function"]["name"], each["function"]["arguments"])]
        ]
    if message["role"] == "tool":
        found["tool_call_id"] = message.get("tool_call_id") or ""
    return found


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    kinds = {part.get("type") for part in content} - {"text"}
    if kinds:
        what = f"the environment shows the model {', '.join(sorted(map(str, kinds)))}, and rolemesh knows text only"
        raise AgentError(what, remedy="choose tasks without images")
    return "\n".join(part["text"] for part in content)


def _object(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments


def _equal(found: Message, turn: Message) -> bool:
    plain = _plain(turn)
    calls = [
        [(each["id"], each["function"]["name"], each["function"]["arguments"]) for each in one.get("tool_calls", ())]
        for one in (found, plain)
    ]
    return (
        found["role"] == "assistant" and calls[0] == calls[1] and found["content"].strip() == plain["content"].strip()
    )
