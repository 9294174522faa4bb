"""The two roles without a plugin: a simulator whose rows are all alike for a while, and a learner."""

import time

import numpy as np
from rolemesh import Batch, RankContext

TRUTH = np.float32([0.5, -1.0, 2.0])


class Simulator:
    """A wandering point: eight rows per step, each near the previous one, labelled by a linear function."""

    def __init__(self, ctx: RankContext, seconds: float = 0.03) -> None:
        self.ctx, self.seconds = ctx, seconds
        self.at = np.zeros(3, np.float32)

    def run(self) -> Batch:
        """`x`: float32 of shape (8, 3); `y`: float32 of shape (8,)."""
        time.sleep(self.seconds)  # a real one has something to compute
        steps = self.ctx.rng("steps", self.ctx.step).normal(scale=0.2, size=(8, 3)).astype(np.float32)
        x = self.at + np.cumsum(steps, axis=0, dtype=np.float32)
        self.at = x[-1].copy()
        return Batch({"x": x, "y": x @ TRUTH})

    def snapshot(self):
        return {"at": self.at}

    def restore(self, state) -> None:
        self.at = np.array(state["at"])


class Learner:
    """Fits a linear function by normalised least mean squares."""

    def __init__(self, ctx: RankContext, rate: float = 0.5) -> None:
        self.ctx, self.rate = ctx, rate
        self.weights = np.zeros(3, np.float32)

    def fit(self, rows: Batch) -> None:
        error = rows["x"] @ self.weights - rows["y"]
        step = error / (1 + (rows["x"] ** 2).sum(axis=1))
        self.weights = self.weights - self.rate * step @ rows["x"] / rows.rows
        self.ctx.metric(loss=float((error**2).mean()), distance=float(np.abs(self.weights - TRUTH).max()))

    def snapshot(self):
        return {"weights": self.weights}

    def restore(self, state) -> None:
        self.weights = np.array(state["weights"])
