"""Environments of OpenEnv for tests: a sum with a typed action, and tools of a FastMCP server."""

from __future__ import annotations

from typing import Any

from fastmcp import FastMCP
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Add(Action):
    """Add a number to the sum."""

    number: int


class Say(Action):
    """Say a word."""

    word: str = Field(max_length=20)


class Sum(Observation):
    """The sum."""

    sum: int


class Sums(Environment[Add, Sum, State]):
    """Rewards each step that brings the sum nearer to 50, and ends there."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **given: Any) -> Sum:
        self.sum = (seed or 0) % 50
        return Sum(sum=self.sum)

    def step(self, action: Add, timeout_s: float | None = None, **given: Any) -> Sum:
        before, self.sum = self.sum, self.sum + action.number
        return Sum(sum=self.sum, reward=float(abs(50 - self.sum) < abs(50 - before)), done=self.sum == 50)

    @property
    def state(self) -> State:
        return State()


class Words(Environment[Say, Observation, State]):
    """Ends with the word "end". Its tasks are listed."""

    def num_tasks(self, split: str) -> int:
        return {"train": 5, "test": 2}[split]

    def reset(self, seed: int | None = None, episode_id: str | None = None, **given: Any) -> Observation:
        self.said: list[str] = [f"{given['split']} {given['index']}"]
        return Observation(metadata={"said": self.said})

    def step(self, action: Say, timeout_s: float | None = None, **given: Any) -> Observation:
        self.said.append(action.word)
        return Observation(done=action.word == "end", reward=len(self.said) if action.word == "end" else None)

    @property
    def state(self) -> State:
        return State()


class Tools(MCPEnvironment):
    """Has a tool that counts."""

    def __init__(self) -> None:
        server: Any = FastMCP("counting")
        self.count = 0

        @server.tool
        def count(by: int) -> str:
            """Count."""
            self.count += by
            return f"{self.count}"

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **given: Any) -> Observation:
        self.count = 0
        return Observation()

    def _step_impl(self, action: Action, timeout_s: float | None = None, **given: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return State()
