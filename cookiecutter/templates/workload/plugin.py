"""The workload: a curriculum that deals out tasks and goes to harder ones as the answers get better."""

import numpy as np
from pydantic import BaseModel, Field
from rolemesh import Batch, Broadcast, RankContext, Split, State, Workload, operator

__all__ = ["{{ cookiecutter.__class }}"]

START = 0.5
"""The share of solved tasks that is assumed of a level before the first answers."""


class {{ cookiecutter.__class }}(Workload):
    """Deals out tasks of a level, and moves to the next one where the running share of solved tasks says so.

    Every rank sees all scores, so all of them are on one level, however many there are.
    """

    class Options(BaseModel, extra="forbid"):
        """Options in the job file."""

        rows: int = Field(default=8, ge=1, description="Tasks per step, over all ranks.")
        levels: int = Field(default=10, ge=1, description="Difficulties, from 0 on.")
        up: float = Field(default=0.8, gt=START, le=1, description="Go up when this running share of tasks is solved.")
        down: float = Field(default=0.2, ge=0, lt=START, description="Go down when no more than this share is.")
        smoothing: float = Field(default=0.5, ge=0, lt=1, description="The weight of earlier steps in that share.")

    options: Options
    deterministic = True

    def setup(self, ctx: RankContext) -> None:
        """Start at the easiest level."""
        self.ctx = ctx
        self.level = 0
        self.solved = START

    @operator(returns=Split())
    def next(self) -> Batch:
        """The step's tasks: `level` and `seed`, int64 of shape (rows,). A row is the same whichever rank makes it."""
        ctx, mine = self.ctx, self.ctx.mine(self.options.rows)
        seeds = [ctx.seed_for("task", ctx.step, row) for row in mine]
        ctx.count(tasks=len(mine))
        return Batch({"level": np.full(len(mine), self.level), "seed": np.array(seeds, dtype=np.int64)})

    @operator(answers=Broadcast())
    def learn(self, answers: Batch) -> None:
        """Take the answers' `score`, of shape (rows,), from 0 to 1; go up or down where they say so."""
        options, score = self.options, float(np.mean(answers["score"], dtype=np.float64))
        self.solved = options.smoothing * self.solved + (1 - options.smoothing) * score
        self.ctx.metric(level=self.level, solved=self.solved)
        if self.solved >= options.up and self.level < options.levels - 1:
            self.level, self.solved = self.level + 1, START
        elif self.solved <= options.down and self.level > 0:
            self.level, self.solved = self.level - 1, START

    def snapshot(self) -> State:
        """All that influences later steps."""
        return {"level": self.level, "solved": self.solved}

    def restore(self, state: State) -> None:
        """Go on from `snapshot`, in a new process, after `setup`."""
        self.level, self.solved = int(state["level"]), float(state["solved"])
