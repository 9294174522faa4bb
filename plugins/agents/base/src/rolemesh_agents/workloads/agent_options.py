"""The options of the workload `agent`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from rolemesh.api.import_ref import ImportRef
from rolemesh_agents.conversations.limits import ConversationLimits
from rolemesh_rewards.advantages import AdvantageKind

__all__ = ["AgentOptions"]


class AgentOptions(BaseModel, extra="forbid"):
    """Options of the workload `agent`."""

    model: str = Field(description="folder with the model's tokenizer and chat template, relative to the job file")
    rollout: str = Field("rollout", description="the role that samples: its service `sample`")
    environment: str = Field("environment", description="the role with the workload `environment`")
    harness: str | None = Field(
        None,
        description="name of a harness under plugins.harnesses; null: the only one there, or tools; tools: the plain "
        "tool loop",
    )
    samples: int = Field(default=8, ge=1, description="conversations of each task that `converse` holds")
    conversations: int = Field(
        64, ge=1, description="conversations that a rank holds at once, rounded to whole groups, at least one group"
    )
    ahead: int = Field(
        0,
        ge=0,
        description="steps whose conversations may begin early: a rank holds fewer than `conversations` while the "
        "longest ones of a step go on, and begins those of later steps meanwhile",
    )
    sampling: dict[str, Any] = Field(
        default_factory=lambda: {"temperature": 1.0},
        description="sampling parameters of each turn: temperature, top_p, top_k, min_p, stop, and more of the rollout",
    )
    evaluation: dict[str, Any] = Field(
        default_factory=lambda: {"temperature": 0.0}, description="sampling parameters that `evaluate` replaces"
    )
    part: int | None = Field(
        128,
        ge=1,
        description="sampled tokens of one call of the rollout, null: a whole turn. If a rank dies, another one "
        "continues with the tokens of the finished calls",
    )
    limits: ConversationLimits = Field(ConversationLimits(), description="limits of a conversation")
    retries: int = Field(
        default=2, ge=0, description="new attempts at a conversation that failed, with a fresh episode"
    )
    refills: int = Field(
        4, ge=0, description="other tasks that replace a group in which a conversation failed; then the job fails"
    )
    advantages: AdvantageKind = Field(
        "group",
        description="group: rewards standardized within the group (GRPO); centered: reward - mean; none: the reward",
    )
    template: ImportRef | None = Field(
        None,
        description="code that is called with the model's folder and returns a `TokenTemplate`; null: the tokenizer's "
        "chat template",
    )
    reasoning: Literal["text", "apart"] = Field(
        "text",
        description="text: the reasoning of a turn, such as <think>…</think>, stays in the text that the environment "
        "or the program gets; apart: it becomes `Turn.reasoning`, and a field of its own in each API. Reasoning "
        "between special tokens, as of GPT-OSS and Gemma 4, is always apart",
    )
    deterministic: bool = Field(
        True,
        description="false: the rollout or the environment may answer the same question in another way. The engine "
        "then never replaces a row that was sent, as for any role that is not deterministic",
    )
