"""Simulated clicks of a million keys, whose true probabilities are known and drift."""

import numpy as np
from pydantic import BaseModel, Field

from rolemesh import Batch, Split, Workload, operator

USERS, ITEMS, TASTES = 700_000, 300_000, 4
DRIFT = 3000
"""Steps in which the tastes of users turn once."""


class ClicksOptions(BaseModel, extra="forbid"):
    """Options of the role `clicks`."""

    rows: int = Field(4096, ge=1, description="clicks per step")


def tastes(keys, salt):
    """Return float32 (keys, TASTES): the same direction for the same key."""
    spread = (keys[:, None] * 2654435761 + salt + np.arange(TASTES) * 40503) % 65521
    found = np.sin(spread * 12.9898)
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def chance(user, item, step):
    """Return the probability of a click: users have one of 64 tastes, items one of 512 kinds, some are popular."""
    turn = 2 * np.pi * step / DRIFT
    likes, kind = tastes(user % 64, 1), tastes(item % 512, 2)
    turned = likes.copy()
    turned[:, 0], turned[:, 1] = (
        np.cos(turn) * likes[:, 0] - np.sin(turn) * likes[:, 1],
        np.sin(turn) * likes[:, 0] + np.cos(turn) * likes[:, 1],
    )
    logits = 3 * (turned * kind).sum(1) + 1.5 * np.sin(item % 997 * 7.7) - 1
    return 1 / (1 + np.exp(-logits))


def popular(rng, most, rows):
    """Return keys below `most`, of which few are frequent: their ranks follow Zipf's law."""
    share = rng.random(rows)
    return np.minimum((most**share).astype(np.int64), most - 1)


class Clicks(Workload):
    """Step n always has the same clicks."""

    Options = ClicksOptions
    deterministic = True

    def setup(self, ctx):
        self.ctx = ctx

    @operator(returns=Split())
    def next(self) -> Batch:
        """Return `user`, `item`, `kind` (int64 keys), `clicked` (float32) and `chance`, the true probability."""
        rng = self.ctx.rng("clicks", self.ctx.step)
        rows = self.options.rows
        user, item = popular(rng, USERS, rows), popular(rng, ITEMS, rows)
        likely = chance(user, item, self.ctx.step).astype(np.float32)
        clicked = (rng.random(rows) < likely).astype(np.float32)
        columns = {"user": user, "item": item, "kind": (user % 64) * 512 + item % 512}
        mine = self.ctx.mine(rows)
        return Batch({**columns, "clicked": clicked, "chance": likely})[mine.start : mine.stop]
