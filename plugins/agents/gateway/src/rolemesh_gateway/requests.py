"""A request for a turn and its answer, in the form that all APIs of the gateway share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rolemesh_agents import Message, Tool, ToolCall

__all__ = ["NO_PREVIOUS", "Answer", "Ask", "Count", "Find", "Kept", "RefusedError"]

NO_PREVIOUS = "previous_response_not_found"
"""Code of the refusal of a request that continues an answer which is not kept."""


class RefusedError(Exception):
    """The gateway refuses a request: HTTP status, reason, and the parameter that is wrong.

    `code`: a word for programs. `retry`: whether the client should send the request again.
    """

    def __init__(self, status: int, reason: str, *, param: str = "", code: str = "", retry: bool = False) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.param = param
        self.code = code
        self.retry = retry


class Ask(msgspec.Struct, frozen=True):
    """A request for a turn of the model.

    - `messages`: the whole history, as chat templates take it. If there is a `previous`, those after it.
    - `refers`: whether `messages` have references to parts of earlier answers; see `references`.
    - `lead`: messages before the history: the instructions of the Responses API, which are no part of it.
    - `params`: parameters of the sampling, by the names of vLLM's `SamplingParams`.
    - `names`: other names of `params` in the API.
    - `unknown`: parameters of the request that the gateway ignores.
    - `echo`: parameters that the answer repeats, as the API does.
    - `previous`: the id of the answer that the request continues, or "".
    - `inherits`: whether the request has the tools of the one that it continues.
    - `kept_as`: how the id of the answer begins by which a later request may continue it, or "".
    - `calls`: whether the answer may call tools; if not, it has the model's calls as text.
    - `again`: whether the client repeats a request because it has lost the answer.
    """

    model: str
    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    params: Mapping[str, Any] = {}
    names: Mapping[str, str] = {}
    stream: bool = False
    usage: bool = True
    """Whether a stream ends with the counts of tokens."""
    unknown: Sequence[str] = ()
    echo: Mapping[str, Any] = {}
    refers: bool = False
    lead: Sequence[Message] = ()
    previous: str = ""
    inherits: bool = False
    kept_as: str = ""
    calls: bool = True
    again: bool = False

    def repeats(self, other: Any) -> bool:
        """Return whether `other` asks for the same turn: a client that has lost the answer asks again."""
        if not isinstance(other, Ask):
            return False
        names = ("kept_as", "previous", "params", "messages", "lead", "tools", "calls")
        return all(getattr(self, name) == getattr(other, name) for name in names)


class Count(msgspec.Struct, frozen=True):
    """A request for the number of tokens that the model would read for `ask`."""

    ask: Ask


class Find(msgspec.Struct, frozen=True):
    """A request for a kept answer. `forget`: leave it out from now on."""

    name: str
    forget: bool = False


class Answer(msgspec.Struct, frozen=True):
    """A turn of the model, as a client sees it.

    - `number`: the turn's number in the conversation, from 0. Ids of answers are made of it.
    - `stop`: the text at which the content was cut, or "".
    - `reasoning`: the reasoning, if the conversation has it apart from the content.
    - `finish`: "stop", "length" or "calls".
    - `ignored`: parameters of the request that had no effect.
    """

    number: int
    content: str
    calls: Sequence[ToolCall]
    finish: str
    stop: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    ignored: Sequence[str] = ()
    reasoning: str = ""

    def as_message(self) -> Message:
        """Return the turn as chat templates take it."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": dict(each.arguments)}}
                for each in self.calls
            ]
        return message


class Kept(msgspec.Struct, frozen=True):
    """An answer that later requests may continue or read.

    `ask`: its request, without the messages. `messages`: those before it and itself, without the instructions of its
    request. `tools`: those of its request.
    """

    ask: Ask
    answer: Answer
    messages: Sequence[Message]
    tools: Sequence[Tool]
