"""Options of the environment `verifiers`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

__all__ = ["VerifiersOptions"]


class VerifiersOptions(BaseModel, extra="forbid"):
    """The taskset, its settings, and the part that the model plays."""

    taskset: str = Field(min_length=1, description="id of the taskset: its package, or one that verifiers has")
    config: dict[str, Any] = Field(
        default_factory=dict, description="settings as in the table [env] of verifiers; taskset: {split: train}"
    )
    held_out: dict[str, Any] | None = Field(
        None, description="settings of the taskset for held-out tasks; null: the first eval_size tasks are held out"
    )
    eval_size: int = Field(64, ge=0, description="maximum number of held-out tasks")
    most: int = Field(10_000, ge=1, description="number of tasks of a taskset that has no end")
    agent: str | None = Field(
        None, description="the agent that the model plays; null: the only one that has no model of its own in config"
    )
    once: list[str] = Field(default_factory=list, description="tools with effects outside; rolemesh repeats no call")
    success: float | None = Field(None, description="reward from which on the task counts as solved; null: unknown")
