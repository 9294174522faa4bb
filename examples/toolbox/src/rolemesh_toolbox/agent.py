"""The workload `guesser`: it solves many tasks at the same time, in several turns, with a tool of another role."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, Field
from rolemesh import Balanced, Batch, RankContext, Split, Workload, operator

__all__ = ["Agent"]


class AgentOptions(BaseModel, extra="forbid"):
    """Options of the `guesser` workload."""

    tool: str = Field(default="sandbox", description="The role that has the service `evaluate`.")
    turns: int = Field(default=4, ge=1, description="The most calls of the tool for one task.")


class Agent(Workload):
    """Each task is a conversation with the tool: the agent guesses an addend until the sum is right.

    Ranks take tasks on demand, up to eight at once. A task's numbers depend on its item and step only. It therefore
    does not matter which rank solves it, or how often.
    """

    Options = AgentOptions
    api_version = 1
    deterministic = True

    def setup(self, ctx: RankContext[AgentOptions]) -> None:
        """Do nothing: the agent keeps no state between steps."""
        self.ctx = ctx

    @operator(tasks=Balanced(rows=1, concurrency=8), returns=Split())
    async def solve(self, tasks: Batch) -> Batch:
        """Solve `tasks`, which has the columns `start` and `goal` (whole numbers).

        The answer has `turns`, and `solved` (0 or 1).
        """
        options, start, goal = self.ctx.options, int(tasks["start"][0]), int(tasks["goal"][0])
        rng = self.ctx.rng(self.ctx.step, self.ctx.item)
        guess = int(rng.integers(-9, 10))
        turns, found = 0, None
        while found != goal and turns < options.turns:
            turns += 1
            found = await self.ctx.call(options.tool, "evaluate", f"{start} + {guess}")
            guess += goal - found if found is not None else 1
        self.ctx.metric(solved=float(found == goal), turns=turns)
        return Batch({"turns": np.array([turns]), "solved": np.array([int(found == goal)])})
