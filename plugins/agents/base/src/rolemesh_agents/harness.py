"""The API of a harness: how an environment becomes calls of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import msgspec

from rolemesh.api.plugin import Plugin
from rolemesh_agents.actions import Message, ToolCall
from rolemesh_agents.environment import Observation, Outcome, Start

__all__ = ["Conversation", "Harness", "Turn"]


class Turn(msgspec.Struct, frozen=True):
    """One turn of the model, as sampled.

    - `content`: the text without the calls of tools.
    - `calls`: the calls that the turn asks for. `unparsed` has the text of a call that is not one.
    - `ids`: the sampled tokens. They are what is trained; rolemesh never encodes `content` again.
    - `finish`: "stop", or "length" at the limit of the turn.
    """

    content: str
    calls: Sequence[ToolCall]
    unparsed: Sequence[str]
    ids: Sequence[int]
    finish: str


class Conversation(Protocol):
    """One conversation, as a harness sees it. Every answer is logged before the harness gets it.

    A harness that is restarted runs again from its beginning and gets the logged answers, so it must be deterministic:
    same answers, same calls of these methods. All methods raise `EndReached` when the conversation is over, and
    `ConversationFailedError` when it cannot go on; a harness lets both pass.
    """

    number: int
    """The conversation's number in its group, from 0."""
    start: Start
    """The environment's messages and tools."""
    seed: int
    """For all chance of the harness."""

    async def sample(self) -> Turn:
        """Let the model take its turn. The turn becomes part of the conversation."""

    async def call(self, call: ToolCall) -> Observation:
        """Run a call of a tool in the environment, within the limit of one call."""

    async def reply(self, content: str) -> Outcome:
        """Give a turn without calls to the environment."""

    def append(self, messages: Sequence[Message]) -> None:
        """Add messages of the user or of tools. Their tokens are those of the chat template, and are not trained."""

    def begin(self, messages: Sequence[Message], name: str = "") -> None:
        """Begin another sample of this conversation with these messages: a sub-agent, or a compacted context.

        All samples of a conversation have its reward.
        """

    def finish(self) -> None:
        """End the conversation in good order; raises `EndReached`."""


class Harness(Plugin, ABC):
    """Base of harnesses (entry-point group ``rolemesh.harnesses``). Each rank has one object for all conversations."""

    async def setup(self) -> None:
        """Prepare, in the event loop of the rank. Called before the first conversation of a step."""

    @abstractmethod
    async def run(self, talk: Conversation) -> None:
        """Hold one conversation. Many run at the same time."""

    async def close(self) -> None:
        """Release what the harness holds."""
