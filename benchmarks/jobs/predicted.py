"""Roles whose ranks share out the rows of a step and sleep for each, and their flows."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel

from rolemesh import AtMost, Balanced, Batch, Broadcast, RankContext, Split, Workload, flow, operator

ROWS = 24
"""Rows of a step: 1, 2, 3 and 4 ranks get equal parts."""


class Options(BaseModel):
    """`ms`: the milliseconds of sleep for all rows of a step together."""

    ms: float


class Work(Workload):
    """One role of a flow."""

    Options: ClassVar[type[BaseModel]] = Options
    options: Options

    def setup(self, ctx: RankContext) -> None:
        self.ctx = ctx

    def sleep(self, rows: int) -> None:
        time.sleep(self.options.ms / 1e3 * rows / ROWS)

    @operator(returns=Split())
    def make(self) -> Batch:
        self.sleep(ROWS // self.ctx.world_size)
        return Batch({"x": np.arange(ROWS // self.ctx.world_size)})

    @operator(batch=Split(), returns=Split())
    def work(self, batch: Batch) -> Batch:
        self.sleep(batch.rows)
        return batch

    @operator(batch=Balanced(rows=1), returns=Split())
    def work_by_demand(self, batch: Batch) -> Batch:
        self.sleep(batch.rows)
        return batch

    @operator(one=Split(), other=Split(), returns=Split())
    def join(self, one: Batch, other: Batch) -> Batch:
        self.sleep(one.rows)
        return one

    @operator(batch=Split())
    def learn(self, batch: Batch) -> None:
        self.sleep(batch.rows)

    @operator(returns=Broadcast())
    def weights(self) -> Any:
        return np.ones(4)

    @operator(weights=Broadcast())
    def load(self, weights: Any) -> None:
        """Take the weights."""


@flow
def chain(job):
    """Three roles, one after the other."""
    job.c.work(job.b.work(job.a.make()))


@flow
def by_demand(job):
    """The same, and the ranks in the middle take rows when they are free."""
    job.c.work(job.b.work_by_demand(job.a.make()))


@flow
def fork(job):
    """Two roles work beside each other."""
    rows = job.a.make()
    job.c.join(job.b.work(rows), job.d.work(rows))


@flow
def on_policy(job):
    """Rollout, reward and training in turn: each step with the weights of the step before."""
    job.a.load(job.c.weights())
    job.c.learn(job.b.work(job.a.make()))


@flow
def loop(job, lag=1):
    """The same, and the rollout has weights that are `lag` steps older."""
    job.a.load(job.c.weights(), lag=lag)
    job.c.learn(job.b.work(job.a.make()))


@flow
def newest(job):
    """The same with the newest weights that are at most two steps older."""
    job.a.load(job.c.weights(), lag=AtMost(2))
    job.c.learn(job.b.work(job.a.make()))
