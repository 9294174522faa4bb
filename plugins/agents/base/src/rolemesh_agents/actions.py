"""The words of a conversation: messages, tools, and a model's calls of them. All are JSON values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

__all__ = ["Message", "Tool", "ToolCall", "joined"]

Message: TypeAlias = dict[str, Any]
"""A chat message as chat templates take it: `role` (system, user, assistant, tool), `content`, and the template's
further keys, such as `tool_calls` and `tool_call_id`."""


class Tool(msgspec.Struct, frozen=True):
    """A tool that a model may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """The JSON schema of the arguments, an object."""
    repeatable: bool = True
    """False: a second run of the same call does harm, because its effect is outside the episode: it sends, pays or
    deletes something. rolemesh never repeats such a call; see `rolemesh_agents.Episode`."""

    def as_function(self) -> dict[str, Any]:
        """Return the tool as chat templates and the OpenAI API take it."""
        about = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": about}


class ToolCall(msgspec.Struct, frozen=True):
    """A model's call of a tool. `arguments` are parsed but not checked against the tool's schema."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""
    """Unique in the conversation; the answer refers to it."""


def joined(texts: Iterable[str], turn: bool) -> str:
    """Return the parts of a message as one text.

    `turn`: whether the message is the assistant's. Its parts are pieces of one text: an API splits an answer at its
    citations, and the clients' `output_text` puts it together again. In all other messages each part is a text of its
    own, which ends where its line ends, as in vLLM's server. Empty parts leave no line.
    """
    return ("" if turn else "\n").join(filter(None, texts))
