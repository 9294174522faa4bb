"""The example's roles, in plain Python, and its flow: what is called on which role, and where the values go."""

import numpy as np
from rolemesh import Batch, RankContext, flow


def numbers(ctx: RankContext) -> Batch:
    """Each rank makes 5000 numbers a step, 40 kB."""
    return Batch({"x": ctx.rng(ctx.step, ctx.rank).normal(size=5000)})


def total(numbers: Batch) -> np.ndarray:
    """The sum of this rank's numbers, and how many there are; the ranks' results are added up on the way."""
    return np.array([numbers["x"].sum(), numbers.rows])


class Mean:
    """Keeps the mean of all numbers so far."""

    def __init__(self, ctx: RankContext) -> None:
        self.ctx = ctx
        self.totals = np.zeros(2)

    def take(self, totals: np.ndarray) -> None:
        self.totals = self.totals + totals
        self.ctx.metric(mean=self.totals[0] / self.totals[1])

    def snapshot(self) -> dict[str, np.ndarray]:
        return {"totals": self.totals}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        self.totals = np.array(state["totals"])


@flow
def means(job):
    """Called once, to see what goes where; what the calls return are handles."""
    job.mean.take(job.adder.total(job.source.numbers()))
