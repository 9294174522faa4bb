"""The roles without a plugin: one draws tasks, the other counts the solved ones."""

import numpy as np
from rolemesh import Batch, RankContext


def draw(ctx: RankContext) -> Batch:
    """Draw sixteen tasks per step: find the addend that makes `goal` of `start`."""
    rng = ctx.rng("tasks", ctx.step)
    return Batch({"start": rng.integers(0, 100, 16), "goal": rng.integers(0, 100, 16)})


class Judge:
    """Counts tasks and solved tasks."""

    def __init__(self, ctx: RankContext) -> None:
        self.ctx = ctx
        self.counts = np.zeros(2, np.int64)

    def count(self, answers: Batch) -> None:
        self.counts = self.counts + np.array([answers.rows, int(answers["solved"].sum())])
        self.ctx.metric(share=float(self.counts[1] / self.counts[0]))

    def snapshot(self):
        return {"counts": self.counts}

    def restore(self, state) -> None:
        self.counts = np.array(state["counts"])
