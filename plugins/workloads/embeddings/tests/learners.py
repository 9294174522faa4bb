"""Roles of the tests' jobs. Each gradient is 1, so a value counts the updates of its key."""

import asyncio

import numpy as np

from rolemesh import Balanced, Batch, Broadcast, Ragged, Split, Workload, operator
from rolemesh_embeddings import Servers

KEYS = 2000


class Data(Workload):
    """Keys by step."""

    deterministic = True

    def setup(self, ctx):
        self.ctx = ctx

    @operator(returns=Split())
    def next(self) -> Batch:
        """Return `count`: int64 keys."""
        return Batch({"count": self.ctx.rng("keys", self.ctx.step).integers(0, KEYS, 64)})


def ones(keys, rows=1):
    """Return a gradient of 1 for each key, repeated ones included."""
    places = np.full(rows + 1, len(keys))
    places[0] = 0
    return Batch(
        {"count_keys": Ragged(keys, places), "count_grads": Ragged(np.ones((len(keys), 2), np.float32), places)}
    )


class Learner(Workload):
    """Returns gradients on an edge."""

    deterministic = True

    @operator(keys=Balanced(rows=16), rows=Broadcast(), returns=Split())
    def train(self, keys: Batch, rows: Batch) -> Batch:
        """Return ones."""
        assert np.isin(keys["count"], rows["count_keys"].values).all()
        return ones(np.array(keys["count"]), keys.rows)


class Caller(Workload):
    """Calls the servers."""

    def setup(self, ctx):
        self.ctx, self.servers = ctx, Servers(ctx, "ps")

    @operator(keys=Split())
    async def train(self, keys: Batch) -> None:
        """Fetch and push in two parts."""
        flat = np.array(keys["count"])
        parts = [{"count": part} for part in np.array_split(flat, 2)]
        number = 0
        async for rows in self.servers.ahead(parts):
            assert np.isin(parts[number]["count"], rows["count_keys"].values).all()
            await self.servers.push(ones(parts[number]["count"]))
            number += 1
        await asyncio.sleep(0.002)
        self.ctx.count(pushed=len(flat))
