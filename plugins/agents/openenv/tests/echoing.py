"""Environments of OpenEnv for tests: a sum with a typed action, and tools of a FastMCP server."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Any

from fastmcp import FastMCP
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, Field


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

    SUPPORTS_CONCURRENT_SESSIONS = True

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

    SUPPORTS_CONCURRENT_SESSIONS = True

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

    SUPPORTS_CONCURRENT_SESSIONS = True

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


class Way(StrEnum):
    LEFT = "left"
    RIGHT = "right"


class Leg(BaseModel):
    way: Way
    length: int = 1


class Walk(Action):
    """Walk some legs."""

    legs: list[Leg]
    note: str | None = None


class Place(Observation):
    """The place of the walker."""

    place: int


class Walks(Environment[Walk, Place, State]):
    """Has `async` methods only, and a `reset` without arguments. It raises if a leg is too long."""

    def reset(self, **given: Any) -> Place:
        raise NotImplementedError

    def step(self, action: Walk, timeout_s: float | None = None, **given: Any) -> Place:
        raise NotImplementedError

    async def reset_async(self) -> Place:  # type: ignore[override]
        self.place, self.lock, self.loop = 0, asyncio.Lock(), asyncio.get_running_loop()
        return Place(place=0)

    async def step_async(self, action: Walk, timeout_s: float | None = None, **given: Any) -> Place:
        async with self.lock:
            assert asyncio.get_running_loop() is self.loop
            for leg in action.legs:
                if leg.length > 5:
                    raise ValueError("a leg has at most 5 steps")
                self.place += leg.length if leg.way is Way.RIGHT else -leg.length
            return Place(place=self.place, reward=float(self.place), done=self.place >= 5)

    @property
    def state(self) -> State:
        return State()


class Listed(Walks):
    """Lists its tasks with `async` methods. Its `reset` takes none of them."""

    async def list_splits(self) -> list[dict[str, str]]:
        return [{"name": "easy", "type": "train"}, {"name": "hard", "type": "test"}]

    async def num_tasks(self, split: str) -> int:
        return {"easy": 3, "hard": 2}[split]
