"""Options of the environment `mcp`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from rolemesh import ImportRef

__all__ = ["McpOptions"]


class McpOptions(BaseModel, extra="forbid"):
    """Options of the environment `mcp`."""

    command: list[str] = Field(min_length=1, description="the server's program and its arguments; it speaks over stdio")
    env: dict[str, str] = Field(
        default_factory=dict, description="the server's environment variables, besides PATH, HOME and a few others"
    )
    tasks: str = Field(
        description="a file of JSON lines with the training tasks, relative to the job file; each has a `prompt` or "
        "`messages`, and whatever the reward needs"
    )
    held_out: str | None = Field(None, description="such a file with the held-out tasks; by default there are none")
    system: str | None = Field(None, description="system prompt; by default none, so the chat template's own is used")
    server_per: Literal["episode", "rank"] = Field(
        "episode",
        description="episode: each episode starts a server, so that its state belongs to the episode; rank: all "
        "episodes of a rank share one, which must keep nothing of them",
    )
    tools: list[str] | None = Field(None, description="the tools that the model sees; null: all, except `judge`")
    once: list[str] = Field(
        default_factory=list,
        description="tools with effects outside of the server; rolemesh never repeats their calls. Tools that the "
        "server itself declares as destructive are such tools, too",
    )
    reward: ImportRef | None = Field(
        None,
        description="a function reward(task, messages) that returns a number or a rolemesh_agents.Reward; `messages` "
        "has the model's texts and calls and the tools' answers",
    )
    judge: str | None = Field(
        None,
        description="a tool that returns the reward as its text. The model does not see it; its arguments are the "
        "`judge` of the task. Without `reward` and `judge`, the model's last text must be the task's `answer`",
    )
    call_s: float = Field(
        30.0,
        gt=0,
        description="limit of one call of a tool, in seconds; after it, the model reads that the tool timed out",
    )
    start_s: float = Field(60.0, gt=0, description="limit of the start of a server, in seconds")

    @field_validator("tasks", "held_out")
    @classmethod
    def _in_the_jobs_folder(cls, path: str | None, info: ValidationInfo) -> str | None:
        return path if path is None else str(Path((info.context or {}).get("base", "."), path).absolute())
