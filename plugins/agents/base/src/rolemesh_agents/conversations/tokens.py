"""The part of a chat template that a conversation needs: tokens of messages, and messages of sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from rolemesh_agents.actions import Message, Tool, ToolCall

__all__ = ["ParsedTurn", "TokenTemplate"]


class ParsedTurn(msgspec.Struct, frozen=True):
    """The meaning of a turn's tokens.

    - `content`: the text without the calls, and without the reasoning if it is apart. All other white space stays.
    - `calls`: the calls, with the ids that the model has written, or "".
    - `unparsed`: the texts of calls that cannot be read.
    - `reasoning`: the text between the model's marks of reasoning, or "" if it is a part of the content.
    - `text`: the content with the calls in it, as sampled; None: the content.
    - `stop`: the text at which the turn was cut, or "".
    """

    content: str
    calls: Sequence[ToolCall] = ()
    unparsed: Sequence[str] = ()
    reasoning: str = ""
    text: str | None = None
    stop: str = ""


class TokenTemplate(Protocol):
    """A chat template with its tokenizer. All methods are deterministic."""

    @property
    def stop_token_ids(self) -> Sequence[int]:
        """The tokens that end a turn."""

    def opening(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Sequence[int]:
        """Return the tokens before the model's first turn."""

    def increment(self, turn: Sequence[int], messages: Sequence[Message], tools: Sequence[Tool]) -> Sequence[int]:
        """Return the tokens between the sampled tokens `turn` and the model's next turn.

        They close the turn, unless its last token does so, and give the model `messages`: all that come between the two
        turns, because some templates write several answers of tools as one block. `tools` are those of `opening`.
        """

    def parse(self, turn: Sequence[int], tools: Sequence[Tool], stop: Sequence[str] = (), after: int = 0) -> ParsedTurn:
        """Return the meaning of the sampled tokens of a turn. No tokens raise.

        - `tools`: those that the model was offered. Without one, nothing is a call.
        - `stop`: texts at which the turn ends. The first that is complete counts, and is not in the result. A
          conversation leaves the parameter out if there is none.
        - `after`: number of first tokens in which none is complete: `min_tokens`.
        """

    def message(self, turn: ParsedTurn) -> Message:
        """Return the chat message of a turn."""
