"""Parts that the requests of all APIs have in common: bodies, texts, calls and tools."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from rolemesh_agents import Message, Tool
from rolemesh_agents.actions import joined
from rolemesh_gateway.requests import RefusedError

__all__ = [
    "arguments_of", "called", "checked", "checked_params", "dumped", "forces", "history", "id_of",
    "noted_keys", "noted_parts", "pieces", "read_keys", "refuse", "structure_of", "text_of", "tool_of", "unknown_of",
    "wrong_tool",
]  # fmt: skip

T = TypeVar("T", bound=msgspec.Struct)
PIECE = 64
"""Number of characters in one event of a stream."""
TEXTS = ("text", "input_text", "output_text")
RANGES = {
    "max_tokens": (1, math.inf), "temperature": (0, 2), "top_p": (1e-9, 1), "top_k": (-1, math.inf), "min_p": (0, 1),
    "frequency_penalty": (-2, 2), "presence_penalty": (-2, 2),
}  # fmt: skip
"""The least and the greatest value of sampling parameters."""
HARMLESS_KEYS = frozenset({
    "cache_control", "id", "index", "parsed", "parsed_arguments", "parsed_output", "prompt_cache_breakpoint", "status",
    "type",
})  # fmt: skip
"""Keys of messages, parts, calls and tools that change nothing that a program could see. Clients add some of them."""
TEXT_KEYS = HARMLESS_KEYS | {"text", "refusal"}


def checked(body: Mapping[str, Any], form: type[T]) -> T:
    """Return `body` as `form`; keys that the form does not have are left out. Raises `RefusedError`."""
    try:
        return msgspec.convert(body, form)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        missing = reason.partition("missing required field `")[2]
        name = place.rstrip("`") or missing.rstrip("`")
        raise RefusedError(400, f"{name or 'body'}: {reason}", param=name) from None


def unknown_of(body: Mapping[str, Any], form: type[msgspec.Struct], harmless: Sequence[str]) -> list[str]:
    """Return the keys of `body` that have an effect in the API and none here. Values of null have no effect."""
    known = {*form.__struct_encode_fields__, *harmless}
    return sorted(key for key, value in body.items() if key not in known and value is not None)


def refuse(body: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
    """Raise `RefusedError` if `body` has one of the parameters, with its reason. Empty values ask for nothing,
    but an empty object for its defaults."""
    for name, reason in reasons.items():
        if body.get(name) or body.get(name) == {}:
            raise RefusedError(400, f"{name}: {reason}", param=name)


def read_keys(*names: str) -> frozenset[str]:
    """Return the keys of an object that need no note: `names`, which the gateway reads, and those without an effect in
    the API."""
    return HARMLESS_KEYS | {*names}


def noted_keys(given: Any, where: str, read: frozenset[str]) -> list[str]:
    """Return the keys of a message, a part, a call or a tool that have no effect here. Empty values ask for nothing."""
    if not isinstance(given, Mapping):
        return []
    return [f"{where}.{key}" for key, value in given.items() if key not in read and value]


def noted_parts(content: Any, where: str, read: frozenset[str] = TEXT_KEYS) -> list[str]:
    """Return the keys of the parts of a content that have no effect here."""
    parts = content if isinstance(content, list) else ()
    return [key for part in parts for key in noted_keys(part, f"{where}.content[]", read)]


def checked_params(params: Mapping[str, Any], names: Mapping[str, str] = {}) -> Mapping[str, Any]:
    """Return sampling parameters if an engine can use them. `names`: what the API calls them. Raises `RefusedError`."""
    for name, value in params.items():
        least, most = RANGES.get(name, (-math.inf, math.inf))
        told = names.get(name, name)
        if name == "stop":
            if not all(value):
                raise RefusedError(400, f"{told}: a text to stop at must not be empty", param=told)
        elif name != "structured_outputs" and not least <= value <= most:
            between = f"at least {least}" if most == math.inf else f"from {least:g} to {most}"
            raise RefusedError(400, f"{told}: {value} is not {between}", param=told)
    return params


def structure_of(given: Any, where: str) -> dict[str, Any]:
    """Return the form that a request asks for as vLLM's `structured_outputs`; {} for text. Raises `RefusedError`.

    `given`: ``{"type": "json_schema", "schema": …}``, the schema perhaps inside of ``json_schema``.
    """
    kind = given.get("type") if isinstance(given, dict) else None
    if given is None or kind == "text":
        return {}
    if kind == "json_object":
        return {"json_object": True}
    inner = given.get("json_schema", given) if isinstance(given, dict) else None
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict):
        raise RefusedError(400, f"{where}: neither text, nor json_object, nor json_schema with a schema", param=where)
    return {"json": schema}


def text_of(content: Any, where: str, turn: bool = False) -> str:
    """Return the text of a message's content: a string, or a list of parts with text; in a `turn` perhaps null."""
    if isinstance(content, str):
        return content
    if content is None:
        if turn:
            return ""
        raise RefusedError(400, f"{where}: the content is null or missing; send a text, or an empty one", param=where)
    if not isinstance(content, list):
        raise RefusedError(400, f"{where}: content must be a string or a list of parts", param=where)
    found = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind == "refusal":
            found.append(str(part.get("refusal") or ""))
        elif kind in TEXTS and isinstance(part.get("text"), str):
            found.append(part["text"])
        else:
            raise RefusedError(
                400, f"{where}: the model reads text only, and this part is {kind!r}; send text", param=where
            )
    return joined(found, turn)


def arguments_of(given: Any, where: str) -> Any:
    """Return the arguments of a call in the history: an object, or the text if it is none."""
    if isinstance(given, dict):
        return given
    if not isinstance(given, str):
        raise RefusedError(400, f"{where}: the arguments of a call must be a JSON text", param=where)
    try:
        found = json.loads(given or "{}")
    except (ValueError, RecursionError):
        return given
    return found if isinstance(found, dict) else given


def id_of(given: Any, name: str, where: str) -> str:
    """Return the id of a call, which is at the key `name`. Raises `RefusedError`."""
    if not isinstance(given, str) or not given:
        reason = f"{where}.{name}: a text is required, the id of the call that the model got from its turn"
        raise RefusedError(400, reason, param=f"{where}.{name}")
    return given


def called(number: str, name: Any, arguments: Any, where: str) -> dict[str, Any]:
    """Return a call of a tool as chat templates take it."""
    if not isinstance(name, str) or not name:
        raise RefusedError(400, f"{where}: a call needs the name of its tool", param=where)
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments_of(arguments, where)}}


def tool_of(name: Any, description: Any, schema: Any, where: str) -> Tool:
    """Return a tool that the client offers to the model."""
    if not isinstance(name, str) or not name:
        raise RefusedError(400, f"{where}: a tool needs a name", param=where)
    if schema is not None and not isinstance(schema, dict):
        raise RefusedError(400, f"{where}: the schema of a tool must be an object", param=where)
    return Tool(name, str(description or ""), schema or {"type": "object", "properties": {}})


def wrong_tool(kind: Any, where: str) -> RefusedError:
    """Return the error of a tool that the client does not run itself."""
    reason = f"{where}: the gateway knows functions only, and this tool is a {kind!r}"
    return RefusedError(400, f"{reason}; the option leave_out of the harness leaves such tools out", param="tools")


def forces(choice: Any, words: Sequence[str], named: str | None, offered: Sequence[Tool] | None) -> bool:
    """Return whether `tool_choice` forces a call, which the gateway does not do. Raises `RefusedError`.

    `choice`: its word. `words`: those of the API that force a call. `named`: the tool that it names, or None.
    `offered`: the request's tools; None if an earlier request has offered them.
    """
    if choice in (None, "auto", "none"):
        return False
    if choice not in words:
        reason = f"tool_choice: {choice!r} is none of {', '.join(('auto', 'none', *words))}"
        raise RefusedError(400, reason, param="tool_choice")
    if offered is not None and named not in (None, *(each.name for each in offered)):
        raise RefusedError(400, f"tool_choice: the request has no tool {named!r}", param="tool_choice")
    if offered is not None and not offered:
        raise RefusedError(400, f"tool_choice: {choice!r} needs tools, and the request has none", param="tool_choice")
    return True


def history(messages: Sequence[Message], param: str = "messages") -> Sequence[Message]:
    """Return `messages` if the model can answer them. `param`: their name. Raises `RefusedError`."""
    if not messages:
        raise RefusedError(400, f"{param}: at least one message is required", param=param)
    if messages[-1]["role"] == "assistant":
        raise RefusedError(
            400,
            f"{param}: the last one is the assistant's; end with another one, for the gateway continues no texts",
            param=param,
        )
    return messages


def pieces(text: str) -> Iterator[str]:
    """Yield a text in the parts of a stream."""
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]


def dumped(value: Any) -> str:
    """Return the arguments of a call as clients receive them: JSON with the keys in the model's order."""
    return json.dumps(value, ensure_ascii=False)
