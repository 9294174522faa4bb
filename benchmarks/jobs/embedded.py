"""Roles and flow of `embeddings.yaml`: keys, and gradients that are the rows themselves."""

import numpy as np
from pydantic import BaseModel

from rolemesh import Batch, Broadcast, Ragged, Split, Workload, flow, operator


@flow
def embedded(job, lag: int = 1):
    keys = job.keys.next()
    job.ps.update(job.worker.train(job.ps.lookup(keys)), lag=lag)


class Options(BaseModel):
    rows: int = 20000
    most: int = 1_000_000


class Keys(Workload):
    """The same different keys for the same step."""

    Options = Options
    deterministic = True

    def setup(self, ctx):
        self.ctx = ctx

    @operator(returns=Split())
    def next(self) -> Batch:
        """Return `t`: int64 keys."""
        return Batch({"t": different(self.ctx.step, self.options.rows, self.options.most)})


class Gradients(Workload):
    """Returns the rows as their gradients."""

    deterministic = True

    @operator(rows=Broadcast(), returns=Split())
    def train(self, rows: Batch) -> Batch:
        """Return one gradient per key."""
        keys, values = rows["t_keys"].values, rows["t_values"].values
        places = np.array([0, len(keys)])
        return Batch({"t_keys": Ragged(keys, places), "t_grads": Ragged(values, places)})


def different(step, rows, most):
    """Return `rows` different keys below `most`."""
    return (np.arange(rows, dtype=np.int64) * (most // rows) + step * 7919) % most
