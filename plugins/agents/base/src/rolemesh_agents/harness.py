"""The API of a harness: how an environment becomes calls of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from rolemesh.api.plugin import Plugin
from rolemesh.api.workload import RankContext
from rolemesh_agents.actions import Message, Tool, ToolCall
from rolemesh_agents.environment import Observation, Outcome, Reward, Start

if TYPE_CHECKING:
    from rolemesh.job.prepared import CheckedJob

__all__ = ["Conversation", "Harness", "Turn"]


class Turn(msgspec.Struct, frozen=True):
    """One turn of the model, as sampled.

    - `content`: the text without the calls of tools, white space included, up to a text of `stop`.
    - `calls`: the calls that the turn asks for; none if no tool was offered. `unparsed` has the text of a call that is
      not one.
    - `ids`: the sampled tokens. They are what is trained; rolemesh never encodes `content` again.
    - `finish`: "stop", or "length" at the limit of the turn.
    - `prompt_tokens`: number of tokens before the turn.
    - `text`: the content with the calls in it, as sampled.
    - `reasoning`: the reasoning, if the agent's option `reasoning` or the model's format has it apart; see `Template`.
    - `stop`: the text of the sampling parameter `stop` that ended the turn, or "".
    """

    content: str
    calls: Sequence[ToolCall]
    unparsed: Sequence[str]
    ids: Sequence[int]
    finish: str
    prompt_tokens: int = 0
    text: str = ""
    reasoning: str = ""
    stop: str = ""


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

    async def sample(self, params: Mapping[str, Any] = {}) -> Turn:
        """Let the model take its turn. The turn becomes part of the conversation.

        `params` replace parameters of the sampling for this turn (`temperature`, `stop`). `max_tokens` is at most the
        limit of a turn. A cancelled `sample` leaves the conversation as it was before.
        """

    async def call(self, call: ToolCall) -> Observation:
        """Run a call of a tool in the environment, within the limit of one call."""

    async def reply(self, content: str) -> Outcome:
        """Give a turn without calls to the environment."""

    def append(self, messages: Sequence[Message]) -> None:
        """Add messages of the user or of tools. Their tokens are those of the chat template, and are not trained.

        An answer of a tool is for the call whose id is its `tool_call_id`. The model reads the answers in the order of
        its calls.
        """

    def withdraw(self) -> None:
        """Take back the messages that were appended since the model's last turn in this sample: it has not seen them.

        For a turn that was cancelled or refused. The messages with which a sample begins stay.
        """

    def begin(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None, name: str = "") -> int:
        """Begin another sample of this conversation with these messages: a sub-agent, or a compacted context.

        `tools`: the tools that the model sees; None: those of `start`. Returns the sample's number; the first one, with
        the messages of `start`, is 0. A sample without a turn of the model is left out of the result. All samples of a
        conversation have its reward.
        """

    def resume(self, sample: int) -> None:
        """Go on with an earlier sample of this conversation: `sample` and `append` refer to it from now on."""

    def count(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None, sample: int | None = None) -> int:
        """Return the number of tokens that the model would read before its next turn. Nothing changes.

        `sample` None: in a new sample that begins with `messages` and `tools`, as in `begin`. A number: in that sample,
        after `messages` are appended to it; `tools` has no effect then.
        """

    def judge(self, reward: Reward) -> None:
        """Set the conversation's reward in place of the environment's. The last call counts.

        Allowed after `EndReached`, too, until the harness returns.
        """

    def finish(self, truncated: str = "") -> None:
        """End the conversation in good order, or, with a reason, as truncated; raises `EndReached`."""


class Harness(Plugin, ABC):
    """Base of harnesses (entry-point group ``rolemesh.harnesses``). Each rank has one object for all conversations."""

    @classmethod
    def check_job(cls, options: Any, job: CheckedJob) -> None:
        """Check the whole job before it starts: what the harness needs from it. See `Workload.check_flow` for `job`.

        Raise `rolemesh.OptionsError` with a remedy.
        """

    def check_machine(self, ctx: RankContext) -> None:
        """Check that conversations are possible on this machine. Called when the rank starts, before `setup`.

        Raise `AgentError` with a remedy. Leave no process and no file.
        """

    async def setup(self, ctx: RankContext) -> None:
        """Prepare, in the event loop of the rank. Called before the first conversation of a step."""

    @abstractmethod
    async def run(self, talk: Conversation) -> None:
        """Hold one conversation. Many run at the same time."""

    async def close(self) -> None:
        """Release what the harness holds."""
