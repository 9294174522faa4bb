"""The APIs that the gateway speaks. Each parses a request, and writes an answer as one body or as a stream. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from rolemesh_gateway.apis import chat, messages, responses
from rolemesh_gateway.apis.errors import anthropic_error, openai_error
from rolemesh_gateway.requests import Answer, Ask, RefusedError

__all__ = ["CHAT", "MESSAGES", "RESPONSES", "Api", "error_body", "models_body"]


class Api(msgspec.Struct, frozen=True):
    """One API: the functions of its module."""

    parse: Callable[[Mapping[str, Any], bool], Ask]
    answer: Callable[[Ask, Answer], dict[str, Any]]
    events: Callable[[Ask, Answer], Iterator[tuple[str, Any]]]


CHAT = Api(chat.parse, chat.answer, chat.events)
RESPONSES = Api(responses.parse, responses.answer, responses.events)
MESSAGES = Api(messages.parse, messages.answer, messages.events)


def error_body(error: RefusedError, anthropic: bool) -> dict[str, Any]:
    """Return the body of an error."""
    return anthropic_error(error) if anthropic else openai_error(error)


def models_body(name: str, anthropic: bool) -> dict[str, Any]:
    """Return the list of models, which has the policy only."""
    if anthropic:
        model = {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
        return {"data": [model], "has_more": False, "first_id": name, "last_id": name}
    return {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "rolemesh"}]}
