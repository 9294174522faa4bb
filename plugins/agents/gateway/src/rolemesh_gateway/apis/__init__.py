"""The APIs that the gateway speaks. Each parses a request, and writes an answer as one body or as a stream. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rolemesh_gateway.apis import chat, messages, responses
from rolemesh_gateway.apis.errors import anthropic_error, openai_error
from rolemesh_gateway.requests import Answer, Ask, Kept, RefusedError

__all__ = ["CHAT", "MESSAGES", "RESPONSES", "Api", "error_body", "error_event", "items_body", "models_body", "without"]


class Api(msgspec.Struct, frozen=True):
    """One API: the functions of its module."""

    parse: Callable[[Mapping[str, Any], bool], Ask]
    answer: Callable[[Ask, Answer], dict[str, Any]]
    events: Callable[[Ask, Answer], Iterator[tuple[str, Any]]]
    ping: str
    """A part of a stream that clients leave out. It shows that the gateway is alive."""


COMMENT = ": the model is at work\n\n"
PING = 'event: ping\ndata: {"type": "ping"}\n\n'
CHAT = Api(chat.parse, chat.answer, chat.events, COMMENT)
RESPONSES = Api(responses.parse, responses.answer, responses.events, COMMENT)
MESSAGES = Api(messages.parse, messages.answer, messages.events, PING)


def error_body(error: RefusedError, anthropic: bool) -> dict[str, Any]:
    """Return the body of an error."""
    return anthropic_error(error) if anthropic else openai_error(error)


def error_event(error: RefusedError, api: Api) -> tuple[str, Any]:
    """Return the event of a stream that has begun and cannot go on, and its name."""
    body = error_body(error, api is MESSAGES)
    if api is RESPONSES:
        told = {"code": error.code or None, "message": error.reason, "param": error.param or None}
        return "error", {"type": "error", "sequence_number": 0, **told}
    return "error" if api is MESSAGES else "", body


def items_body(kept: Kept, after: str, limit: int, newest_first: bool) -> dict[str, Any]:
    """Return a page of the list of items before an answer of the Responses API."""
    items = responses.items_of(kept)
    if newest_first:
        items.reverse()
    ids = [each["id"] for each in items]
    if after and after not in ids:
        raise RefusedError(400, f"after: there is no item {after!r}", param="after")
    begin = ids.index(after) + 1 if after else 0
    page = items[begin : begin + limit]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    more = begin + limit < len(items)
    return {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": more}


def models_body(name: str, anthropic: bool) -> dict[str, Any]:
    """Return the list of models, which has the policy only."""
    if anthropic:
        model = {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
        return {"data": [model], "has_more": False, "first_id": name, "last_id": name}
    return {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "rolemesh"}]}


def without(tools: Sequence[Any], types: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Return `tools` without those of `types`, and the types that were left out.

    A type of Anthropic ends with a date, such as ``web_search_20250305``; ``web_search`` names it, too.
    """
    kept, left = [], []
    for tool in tools:
        kind = str(tool.get("type")) if isinstance(tool, dict) else ""
        if any(kind == each or kind.startswith(f"{each}_2") for each in types):
            left.append(kind)
        else:
            kept.append(tool)
    return kept, left
