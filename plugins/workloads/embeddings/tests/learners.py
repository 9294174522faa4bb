"""Roles of the tests' jobs. Each gradient is 1, so a value counts the updates of its key."""

import asyncio

import numpy as np
from pydantic import BaseModel

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


def ones(keys, rows=1, dim=2):
    """Return a gradient of 1 for each key, repeated ones included."""
    places = np.full(rows + 1, len(keys))
    places[0] = 0
    return Batch(
        {"count_keys": Ragged(keys, places), "count_grads": Ragged(np.ones((len(keys), dim), np.float32), places)}
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


class ReaderOptions(BaseModel):
    """How old rows may be."""

    max_age: int = 0


class Reader(Workload):
    """Is the only one that updates, so it knows how old each row is that it gets."""

    Options = ReaderOptions

    def setup(self, ctx):
        self.ctx, self.pushed = ctx, np.zeros((1, KEYS), np.int64)
        self.plain = Servers(ctx, "ps")
        self.servers = Servers(ctx, "ps", cache_rows=512, max_age=self.options.max_age)

    @operator(keys=Split())
    async def train(self, keys: Batch) -> None:
        """Fetch keys of which some are frequent, and update half of them.

        `age`: the number of updates that the oldest row lacks; `differ`: the number of rows that are not as a caller
        without a cache gets them, before and after.
        """
        flat = np.unique(np.array(keys["count"]) % self.ctx.rng("most", self.ctx.step).integers(1, KEYS))
        before, found, after = [await fetched(each, flat) for each in (self.plain, self.servers, self.plain)]
        lacks = self.pushed[:, flat] > found  # after each update, `pushed` has the counts
        self.ctx.record(age=int(lacks.any(1).sum()))
        self.ctx.record(differ=int(((before == after) & (found != before)).sum()))
        await self.servers.push(ones(flat[::2]))
        self.pushed = np.concatenate([self.pushed, self.pushed[-1:]])
        self.pushed[-1, flat[::2]] += 1


async def fetched(servers, keys):
    """Return how many updates of each key the servers know."""
    rows = await servers.fetch({"count": keys})
    known, values = rows["count_keys"].values, rows["count_values"].values
    assert sorted(known.tolist()) == keys.tolist()
    return -values[np.argsort(known), 0]


class Growing(Workload):
    """Every step has new keys."""

    deterministic = True

    def setup(self, ctx):
        self.ctx = ctx

    @operator(returns=Split())
    def next(self) -> Batch:
        """Return gradients of 1 for 4000 keys."""
        return ones(np.arange(4000 * self.ctx.step, 4000 * (self.ctx.step + 1)), dim=16)
