"""Roles and flows of `embeddings.yaml`: keys, and gradients that are the rows themselves."""

from functools import cache

import numpy as np
from pydantic import BaseModel

from rolemesh import Batch, Broadcast, Ragged, Split, Workload, flow, operator
from rolemesh_embeddings import Servers

SETS = 16
"""Number of sets of keys, so that making them costs nothing after the first steps."""


@flow
def embedded(job, lag: int = 1):
    keys = job.keys.next()
    job.ps.update(job.worker.train(job.ps.lookup(keys)), lag=lag)


@flow
def called(job, lag: int = 0):
    job.worker.train(job.keys.next(), calls=[job.ps])


class Options(BaseModel):
    """Keys of a step. `popular`: few keys are frequent; `first`: keys of a step until each has a row, 0: none."""

    rows: int = 20000
    most: int = 1_000_000
    popular: bool = False
    first: int = 0


class Keys(Workload):
    """The same keys for the same step."""

    Options = Options
    deterministic = True

    def setup(self, ctx):
        self.ctx = ctx

    @operator(returns=Split())
    def next(self) -> Batch:
        """Return `t`: int64 keys."""
        step, most, first = self.ctx.step, self.options.most, self.options.first
        if step * first < most and first:
            return Batch({"t": np.arange(step * first, min((step + 1) * first, most))})
        if self.options.popular:  # their ranks follow Zipf's law
            return Batch({"t": (most ** self.ctx.rng("keys", step).random(self.options.rows)).astype(np.int64) - 1})
        return Batch({"t": different(step, self.options.rows, most)})


class Gradients(Workload):
    """Returns the rows as their gradients."""

    deterministic = True

    @operator(rows=Broadcast(), returns=Split())
    def train(self, rows: Batch) -> Batch:
        """Return one gradient per key."""
        return gradients(rows)


class CallerOptions(BaseModel):
    """See `Servers`."""

    cache_rows: int = 0
    max_age: int = 0


class Caller(Workload):
    """Calls the servers, and waits for their answers."""

    Options = CallerOptions

    def setup(self, ctx):
        self.servers = Servers(ctx, "ps", **self.options.model_dump())

    @operator(keys=Broadcast())
    async def train(self, keys: Batch) -> None:
        """Fetch the rows of the step's keys, and push one gradient per key."""
        await self.servers.push(gradients(await self.servers.fetch({"t": keys["t"]})))


def gradients(rows):
    """Return the rows as gradients of their keys."""
    keys, values = rows["t_keys"].values, rows["t_values"].values
    places = np.array([0, len(keys)])
    return Batch({"t_keys": Ragged(keys, places), "t_grads": Ragged(values, places)})


def different(step, rows, most):
    """Return `rows` different keys below `most`, in any order: one of `SETS` sets."""
    return _different(step % SETS, rows, most)


@cache
def _different(number, rows, most):
    return np.random.default_rng(number).choice(most, rows, replace=False)
