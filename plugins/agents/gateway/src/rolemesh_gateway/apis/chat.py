"""OpenAI's Chat Completions: https://platform.openai.com/docs/api-reference/chat."""

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

__all__ = ["HARMLESS", "NOTED", "REFUSED", "ChatBody", "answer", "events", "parse"]

HARMLESS = (
    "metadata", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier",
    "service_tier", "store", "user",
)  # fmt: skip
"""Parameters that change nothing that a program could see here."""
REFUSED = {
    "audio": "the model writes text only; leave it out",
    "function_call": "the gateway does not have it; send tool_choice",
    "functions": "the gateway does not have it; send tools",
    "logprobs": "the gateway does not give it; leave it out, the row of the conversation has it",
    "top_logprobs": "the gateway does not give it; leave it out",
    "web_search_options": "the search would run at OpenAI, not here; leave it out",
}
"""Parameters that ask for something that the gateway does not have."""
NOTED = ("logit_bias", "moderation", "reasoning_effort", "seed", "verbosity")
"""Parameters with an effect in the API, and none here."""
REASONING = ("reasoning", "reasoning_content")
"""The reasoning of an answer, as vLLM's server names it, and as DeepSeek's API and older clients do."""
MESSAGE_KEYS = read_keys("role", "content", "refusal", "tool_calls", "tool_call_id", "function_call", *REASONING)
ANSWER_KEYS = MESSAGE_KEYS | {"name"}
"""Keys of a tool's answer. Its name is that of the call."""
CALL_KEYS = read_keys("function")
FUNCTION_KEYS = read_keys("name", "description", "parameters", "arguments")
FINISHED = {"stop": "stop", "length": "length", "calls": "tool_calls"}
EMPTY = {"service_tier": "default", "system_fingerprint": None}
"""Fields of an answer and of a chunk that clients may read without a look whether they are there."""
NO_DETAILS = dict.fromkeys(
    ("accepted_prediction_tokens", "audio_tokens", "reasoning_tokens", "rejected_prediction_tokens"), 0
)
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty")


class ChatBody(msgspec.Struct):
    """The parameters that the gateway reads."""

    messages: list[dict[str, Any]]
    model: str
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    n: int | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    modalities: list[str] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None


def parse(body: Mapping[str, Any], again: bool = False) -> Ask:
    """Return the request. Raises `RefusedError`."""
    given = checked(body, ChatBody)
    refuse(body, REFUSED)
    if given.n is not None and given.n != 1:
        reason = f"n: the gateway gives one answer, and the request asks for {given.n}; send a request for each"
        raise RefusedError(400, reason, param="n")
    if given.modalities not in (None, ["text"]):
        raise RefusedError(400, "modalities: the model writes text only; leave it out", param="modalities")
    unknown = unknown_of(body, ChatBody, (*HARMLESS, *REFUSED))
    tools = [_tool(each, f"tools[{number}]") for number, each in enumerate(given.tools or ())]
    choice: Any = given.tool_choice
    named: str | None = None
    if isinstance(choice, dict):
        about = choice.get("function")
        choice, named = choice.get("type"), about.get("name", "") if isinstance(about, dict) else None
    if forces(choice, ("required", "function", "allowed_tools"), named, tools):
        unknown.append("tool_choice")
    if given.parallel_tool_calls is False and given.tools:
        unknown.append("parallel_tool_calls")
    # A client that does not want the random texts which OpenAI adds to the chunks gets none anyway.
    unknown += noted_keys(given.stream_options, "stream_options", frozenset({"include_usage"}))
    for each in given.messages:
        unknown += _noted(each)
    for each in given.tools or ():
        unknown += noted_keys(each, "tools[]", CALL_KEYS)
        unknown += noted_keys(each.get("function"), "tools[].function", FUNCTION_KEYS)
    names = {"structured_outputs": "response_format"}
    if given.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    return Ask(
        given.model,
        history([_message(each, f"messages[{number}]") for number, each in enumerate(given.messages)]),
        tools,
        checked_params(_params(given), names),
        names,
        bool(given.stream),
        bool((given.stream_options or {}).get("include_usage")),
        unknown,
        calls=choice != "none",
        again=again,
    )


def answer(ask: Ask, given: Answer) -> dict[str, Any]:
    """Return the body of the answer."""
    message: dict[str, Any] = {"role": "assistant", "content": _content(given), "refusal": None, "annotations": []}
    if given.reasoning:
        message |= dict.fromkeys(REASONING, given.reasoning)
    if given.calls:
        message["tool_calls"] = [
            {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": dumped(each.arguments)}}
            for each in given.calls
        ]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": FINISHED[given.finish]}
    return {**_head(ask, given, "chat.completion"), "choices": [choice], "usage": _usage(given)}


def events(ask: Ask, given: Answer) -> Iterator[tuple[str, Any]]:
    """Yield the events of a stream, each with its name, which is empty here. A text is sent as it is."""
    head = _head(ask, given, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None) -> tuple[str, Any]:
        return "", {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": "" if _content(given) is not None else None})
    for piece in pieces(given.reasoning):
        yield chunk(dict.fromkeys(REASONING, piece))
    for piece in pieces(_content(given) or ""):
        yield chunk({"content": piece})
    for number, each in enumerate(given.calls):
        start = {"index": number, "id": each.id, "type": "function", "function": {"name": each.name, "arguments": ""}}
        yield chunk({"tool_calls": [start]})
        for piece in pieces(dumped(each.arguments)):
            yield chunk({"tool_calls": [{"index": number, "function": {"arguments": piece}}]})
    yield chunk({}, FINISHED[given.finish])
    if ask.usage:
        yield "", {**head, "choices": [], "usage": _usage(given)}
    yield "", "[DONE]"


def _head(ask: Ask, given: Answer, kind: str) -> dict[str, Any]:
    # No clock: a program that is started again must see the same answers.
    return {"id": f"chatcmpl-{given.number}", "object": kind, "created": 0, "model": ask.model, **EMPTY}


def _usage(given: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": given.prompt_tokens,
        "completion_tokens": given.completion_tokens,
        "total_tokens": given.prompt_tokens + given.completion_tokens,
        "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": 0, "cache_write_tokens": 0},
        "completion_tokens_details": NO_DETAILS,
    }


def _content(given: Answer) -> str | None:
    return None if given.calls and not given.content.strip() else given.content


def _params(given: ChatBody) -> dict[str, Any]:
    found = {name: value for name in SAMPLING if (value := getattr(given, name)) is not None}
    most = given.max_completion_tokens if given.max_completion_tokens is not None else given.max_tokens
    if most is not None:
        found["max_tokens"] = most
    if structure := structure_of(given.response_format, "response_format"):
        found["structured_outputs"] = structure
    if given.stop:
        found["stop"] = [given.stop] if isinstance(given.stop, str) else given.stop
    return found


def _noted(message: dict[str, Any]) -> list[str]:
    """Return the keys of a message that have no effect here."""
    found = noted_keys(message, "messages[]", ANSWER_KEYS if message.get("role") == "tool" else MESSAGE_KEYS)
    found += noted_parts(message.get("content"), "messages[]")
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        found += noted_keys(call, "messages[].tool_calls[]", CALL_KEYS)
        about = call.get("function") if isinstance(call, dict) else None
        found += noted_keys(about, "messages[].tool_calls[].function", FUNCTION_KEYS)
    return found


def _tool(given: dict[str, Any], where: str) -> Tool:
    about = given.get("function")
    if given.get("type") != "function" or not isinstance(about, dict):
        raise wrong_tool(given.get("type"), where)
    return tool_of(about.get("name"), about.get("description"), about.get("parameters"), where)


def _message(given: dict[str, Any], where: str) -> Message:
    role = given.get("role")
    text = text_of(given.get("content"), where, turn=role == "assistant")
    if role in ("system", "developer"):
        return {"role": "system", "content": text}
    if role == "user":
        return {"role": "user", "content": text}
    if role == "tool":
        told = id_of(given.get("tool_call_id"), "tool_call_id", where)
        return {"role": "tool", "content": text, "tool_call_id": told}
    if role != "assistant":
        raise RefusedError(
            400, f"{where}: role {role!r} is none of system, developer, user, assistant, tool", param=where
        )
    if given.get("function_call"):
        reason = f"{where}.function_call: the gateway does not have it; send tool_calls"
        raise RefusedError(400, reason, param=f"{where}.function_call")
    message: Message = {"role": "assistant", "content": text or str(given.get("refusal") or "")}
    thoughts = [thought for name in REASONING if isinstance(thought := given.get(name), str) and thought]
    if thoughts:
        message["reasoning_content"] = thoughts[0]
    if calls := given.get("tool_calls"):
        if not isinstance(calls, list):
            raise RefusedError(400, f"{where}.tool_calls: a list is required", param=f"{where}.tool_calls")
        message["tool_calls"] = [_call(each, f"{where}.tool_calls[{number}]") for number, each in enumerate(calls)]
    return message


def _call(given: Any, where: str) -> dict[str, Any]:
    about = given.get("function") if isinstance(given, dict) else None
    if not isinstance(about, dict):
        raise RefusedError(400, f"{where}: the gateway knows calls of type 'function' only", param=where)
    return called(id_of(given.get("id"), "id", where), about.get("name"), about.get("arguments"), where)
