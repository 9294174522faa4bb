"""The parts of the job long_tails.yaml: tasks of very different length, slow tools, and models of engine and trainer.

An engine has no other work in this job than to wait: a token takes `token_s`. All else is real: the agents, their logs,
calls and sessions, the edges, and the trainer's choice of rows.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from rolemesh import Batch, Broadcast, RankContext, Split, operator, service
from rolemesh.api.workload import stable_seed
from rolemesh_agents import (
    Conversation,
    Environment,
    Harness,
    Message,
    Observation,
    Reward,
    Start,
    Task,
    Tool,
    ToolCall,
    ToolEpisode,
    tool,
)
from rolemesh_agents.conversations.tokens import ParsedTurn

END = 256


class TailsOptions(BaseModel, extra="forbid"):
    """Options of the environment `Tails`."""

    turns: float = Field(3.0, gt=0, description="median number of turns of a conversation")
    most: int = Field(40, ge=1, description="turns of the longest conversation")
    sigma: float = Field(1.5, ge=0, description="spread of the number of turns: the sigma of a log-normal distribution")
    tool_s: float = Field(0.3, gt=0, description="median seconds of a call of the tool, log-normal with sigma 1")


class Tails(Environment):
    """Tasks that end after a number of calls of the tool `work`."""

    Options = TailsOptions
    options: TailsOptions

    def size(self, split: str) -> int | None:
        """See `Environment.size`."""
        return None

    def task(self, split: Any, number: int, seed: int) -> None:
        """Return no data: the seed of an episode says how long it is."""

    def episode(self) -> TailsEpisode:
        """See `Environment.episode`."""
        return TailsEpisode(self.options)


class TailsEpisode(ToolEpisode):
    """One task. Its state is the number of calls that it has had."""

    def __init__(self, options: TailsOptions) -> None:
        self.options, self.seed, self.had, self.turns = options, 0, 0, 1

    def reset(self, task: Task, seed: int) -> Start:
        """Draw the number of turns."""
        self.seed = seed
        self.turns = turns_of(self.options, seed)
        return Start([{"role": "user", "content": "Work until there is nothing left to do."}], self.tools())

    @tool
    async def work(self) -> Observation:
        """Work for a while."""
        self.had += 1
        await asyncio.sleep(tool_seconds(self.options, self.seed, self.had))
        return Observation("done" if self.had == self.turns else "more", done=self.had == self.turns)

    def reward(self) -> Reward:
        """1 for all."""
        return Reward(1.0)

    def snapshot(self) -> bytes:
        """Return seed, calls and turns."""
        return f"{self.seed} {self.had} {self.turns}".encode()

    def restore(self, state: bytes) -> None:
        """Continue."""
        self.seed, self.had, self.turns = map(int, state.split())


def turns_of(options: TailsOptions, seed: int) -> int:
    """Return the turns of the conversation with this seed."""
    spread = np.exp(options.sigma * np.random.default_rng(seed).standard_normal())
    return int(np.clip(round(options.turns * spread), 1, options.most))


def tool_seconds(options: TailsOptions, seed: int, call: int) -> float:
    """Return how long a call takes: between 0.05 and 5 seconds."""
    spread = np.exp(np.random.default_rng((seed, call)).standard_normal())
    return float(np.clip(options.tool_s * spread, 0.05, 5.0))


class Work(Harness):
    """Calls the tool after each turn of the model."""

    async def run(self, talk: Conversation) -> None:
        """See `Harness.run`."""
        while True:
            await talk.sample()
            answer = await talk.call(ToolCall("work", {}))
            talk.append([{"role": "user", "content": answer.content}])


class Bytes:
    """A `TokenTemplate` without a model: a token is a byte, and `END` ends a message."""

    stop_token_ids = (END,)

    def __init__(self, folder: Any) -> None:
        pass

    def opening(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """See `TokenTemplate`."""
        return self._written(messages)

    def increment(self, turn: Sequence[int], messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """See `TokenTemplate`."""
        return [END, *self._written(messages)]

    def parse(self, turn: Sequence[int], tools: Sequence[Tool]) -> ParsedTurn:
        """See `TokenTemplate`."""
        return ParsedTurn(bytes(turn).decode(), [], [])

    def message(self, turn: ParsedTurn) -> Message:
        """See `TokenTemplate`."""
        return {"role": "assistant", "content": turn.content}

    def _written(self, messages: Sequence[Message]) -> list[int]:
        return [token for each in messages for token in (*each["content"].encode(), END)]


class Engine:
    """Samples turns of 10 to 50 tokens; a token takes `token_s`, in whatever company.

    With `drain`, every turn is made by the weights of its step, as with ``update: drain`` of the workload `vllm`.
    """

    deterministic = False  # which weights make a turn depends on time

    def __init__(self, ctx: RankContext, token_s: float, drain: bool) -> None:
        self.ctx, self._token_s, self._drain, self._version = ctx, token_s, drain, -1

    @operator(weights=Broadcast())
    def load(self, weights: np.ndarray) -> None:
        """Take new weights."""
        if self._drain:
            self.ctx.wait_for_callers()
        self._version = int(weights[0])

    @service(concurrency=256, recorded=True)
    async def sample(self, prompt_ids: Any, params: Mapping[str, Any]) -> dict[str, Any]:
        """See the service `sample` of the workload `vllm`."""
        caller = self.ctx.called_by
        while self._drain and caller is not None and caller.step > self.ctx.step:
            await asyncio.sleep(0.01)
        count = 10 + stable_seed(params["seed"]) % 41
        await asyncio.sleep(count * self._token_s)
        return {
            "ids": np.full(count, ord("x"), np.int32),
            "logprobs": np.full(count, -0.5, np.float32),
            "versions": np.full(count, self._version, np.int64),
            "finish": "stop",
            "seconds": count * self._token_s,
        }


class Trainer:
    """Takes `step_s` for a step, and notes when it began each one, how many turns it got, and how old they were."""

    def __init__(self, ctx: RankContext, step_s: float) -> None:
        self.ctx, self.step_s, self.began, self.rows, self.turns, self.lags = ctx, step_s, [], [], [], []
        self.last = ctx.steps - 1

    @operator(rows=Split())
    def train(self, rows: Batch) -> None:
        """Train."""
        self.began.append(time.monotonic())
        self.rows.append(rows.rows)
        self.turns.append(int(np.sum(rows["turns"])))
        versions = [int(np.max(each)) for each in rows["weight_versions"]]
        self.lags.append(float(np.mean([self.ctx.step - 1 - each for each in versions])))
        time.sleep(self.step_s)
        if self.ctx.step == self.last:
            found = {"began": self.began, "rows": self.rows, "turns": self.turns, "lags": self.lags}
            (self.ctx.run_dir / "trainer-0.times.json").write_text(json.dumps(found))

    @operator(returns=Broadcast())
    def weights(self) -> np.ndarray:
        """Return the number of the step."""
        return np.array([self.ctx.step])

    def snapshot(self) -> dict[str, Any]:
        """Return the state."""
        return {"steps": len(self.began)}

    def restore(self, state: dict[str, Any]) -> None:
        """Refuse: the times of the steps would be lost."""
        raise RuntimeError("the trainer of this benchmark is never killed")
