"""Roles that estimate pi from the share of darts that hit the circle."""

import numpy as np
import rolemesh


def throw(ctx: rolemesh.RankContext) -> rolemesh.Batch:
    """Throw a thousand darts per step."""
    return rolemesh.Batch({"dart": np.random.default_rng(ctx.step).random((1000, 2))})


class Counter:
    """Counts the darts, and those that hit the circle."""

    def __init__(self, ctx: rolemesh.RankContext) -> None:
        self.ctx = ctx
        self.thrown = self.hit = 0

    def count(self, darts: rolemesh.Batch) -> None:
        """Count the darts, and report the estimate."""
        self.thrown += darts.rows
        self.hit += int(((darts["dart"] ** 2).sum(axis=1) < 1).sum())
        self.ctx.count(pi=4 * self.hit / self.thrown)

    def snapshot(self) -> dict[str, int]:
        return {"thrown": self.thrown, "hit": self.hit}

    def restore(self, state: dict[str, int]) -> None:
        self.thrown, self.hit = state["thrown"], state["hit"]
