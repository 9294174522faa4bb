"""The limits of a conversation."""

from __future__ import annotations

from pydantic import BaseModel, Field

__all__ = ["ConversationLimits"]


class ConversationLimits(BaseModel, extra="forbid", frozen=True):
    """The limits of one conversation. A conversation that reaches one ends as ``truncated``, except where noted."""

    turns: int = Field(default=8, ge=1, description="turns of the model in one conversation")
    tokens: int = Field(
        default=2048,
        ge=2,
        description="tokens of the prompt and of all that follows it. A task fails if its prompt leaves no token "
        "for the model",
    )
    turn_tokens: int = Field(default=512, ge=1, description="sampled tokens of one turn")
    turn_s: float | None = Field(
        default=300.0,
        gt=0,
        description="seconds until the rollout must have answered, null: no limit. A later answer is a failure of the "
        "system: the conversation is tried again",
    )
    call_s: float = Field(
        default=30.0,
        gt=0,
        description="seconds of one call of a tool; the model then gets told that the tool did not answer",
    )
    conversation_s: float | None = Field(
        default=None,
        gt=0,
        description="seconds that the rollout and the tools of one conversation have worked, null: no limit. Time in "
        "which a rank was down, or a call waited for a rank, does not count",
    )
