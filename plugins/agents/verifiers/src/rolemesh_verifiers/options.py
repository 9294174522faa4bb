"""Options of the environment `verifiers`."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

__all__ = ["VerifiersOptions"]

OF_TASKSETS = ("config", "most", "agent")
OF_CLASSIC = ("arguments", "failed_rewards")


class VerifiersOptions(BaseModel, extra="forbid"):
    """The tasks, their settings, and the part that the model plays.

    Give `taskset` for a taskset of verifiers 0.4, or `environment` for a package with `load_environment()`.
    """

    taskset: str | None = Field(
        None, min_length=1, description="id of the taskset: its package, or one that verifiers has"
    )
    environment: str | None = Field(
        None, min_length=1, description="id of the environment: its package, which has load_environment()"
    )
    config: dict[str, Any] = Field(
        default_factory=dict, description="settings as in the table [env] of verifiers; taskset: {split: train}"
    )
    arguments: dict[str, Any] = Field(default_factory=dict, description="arguments of load_environment()")
    held_out: dict[str, Any] | None = Field(
        None,
        description="settings of the taskset, or arguments of load_environment(), for held-out tasks; null: "
        "the environment's own evaluation set, or if it has none, the first eval_size tasks",
    )
    eval_size: int = Field(64, ge=0, description="maximum number of held-out tasks")
    most: int = Field(10_000, ge=1, description="number of tasks of a taskset that has no end")
    agent: str | None = Field(
        None, description="the agent that the model plays; null: the only one that has no model of its own in config"
    )
    failed_rewards: Literal["error", "zero"] = Field(
        "error", description="what a reward function of `environment` that raises means: a failure, or the reward 0"
    )
    load_s: float = Field(
        600.0,
        gt=0,
        description="limit of the loading of the environment or the taskset, with its MCP servers, in seconds",
    )
    once: list[str] = Field(default_factory=list, description="tools with effects outside; rolemesh repeats no call")
    success: float | None = Field(None, description="reward from which on the task counts as solved; null: unknown")

    @property
    def name(self) -> str:
        """The id of the taskset or of the environment."""
        return str(self.taskset if self.environment is None else self.environment)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.taskset is None) == (self.environment is None):
            raise ValueError("give `taskset` (verifiers 0.4) or `environment` (a package with load_environment())")
        kind, wrong = ("environment", OF_TASKSETS) if self.taskset is None else ("taskset", OF_CLASSIC)
        fields = type(self).model_fields
        if given := [
            name for name in wrong if getattr(self, name) != fields[name].get_default(call_default_factory=True)
        ]:
            raise ValueError(f"`{kind}` does not use {', '.join(given)}: remove it")
        return self
