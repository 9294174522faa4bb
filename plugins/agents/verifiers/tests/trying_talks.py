"""An environment of verifiers with single turns and a user, with a taskset that has no end. It also does what rolemesh
refuses."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["Guessing", "Numbers"]


class Data(vf.TaskData):
    number: int
    split: str = "train"


class Guess(vf.Task[Data]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        if "raise" in trace.last_reply:
            raise RuntimeError("the judge is broken")
        return float(str(self.data.number) in trace.last_reply)

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class NumbersConfig(vf.TasksetConfig):
    split: str = "train"


class Numbers(vf.Taskset[Guess, NumbersConfig]):
    INFINITE = True

    def load(self) -> Iterator[Guess]:
        for number in itertools.count():
            yield Guess(
                Data(number=number, split=self.config.split, prompt=f"Say {number}.", system_prompt="Be short.")
            )


class GuessingConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()
    runs: int = 1
    changed: bool = False


class Guessing(vf.Env[GuessingConfig]):
    """Odd tasks have a user who answers up to three times. Even ones are over after one answer."""

    async def run(self, task: Guess, agents: vf.Agents) -> None:
        if task.data.number % 2 == 0:
            for _ in range(self.config.runs):
                await agents.player.run(task)
            return
        async with agents.player.interaction(task) as talk:
            segment = await talk.turn()
            for _ in range(3):
                if segment.terminated or str(task.data.number) in segment.last_reply:
                    break
                await asyncio.sleep(0)
                segment = await talk.turn(f"{segment.last_reply} is wrong.")
