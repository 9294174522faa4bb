"""Weights in lent memory: consumers read them in place, and every kill ends like the same job without lending."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.chaos.harness import timeless
from tests.e2e.harness import Job, one_engine
from tests.e2e.ladder import LADDER

Make = Callable[..., Job]

ROLES = '''
import hashlib
import os

import numpy as np
import torch

from rolemesh import Batch, Broadcast, Shard, Sharded, Shards, Split, operator


class Trainer:
    """Half of the rows of six matrices on each rank, in place changed by what the rollout has computed with them."""

    def __init__(self, ctx, lends):
        rows = slice(ctx.rank * 128, (ctx.rank + 1) * 128)
        held = {f"layer.{i}": torch.full((256, 256), float(i))[rows].clone() for i in range(6)}
        self.ctx, self.held = ctx, ctx.lend(held) if lends else held

    @operator(returns=Sharded())
    def weights(self):
        names = list(self.held)
        for first in range(0, 6, 2):
            yield Shards({name: self.shard(name) for name in names[first : first + 2]})

    @operator(returns=Sharded())
    def average(self):
        return Shards({name: self.shard(name) for name in self.held})

    def shard(self, name):
        return Shard(self.held[name], (256, 256), (128 * self.ctx.rank, 0))

    @operator(rows=Split())
    def train(self, rows):
        for name, tensor in self.held.items():
            tensor.mul_(0.9).add_(float(rows["sum"].sum()) * 1e-6 + self.ctx.rank)

    def snapshot(self):
        return {name: tensor.clone() for name, tensor in self.held.items()}

    def restore(self, state):
        for name, tensor in self.held.items():
            tensor.copy_(state[name])


class Rollout:
    """Copies the weights into its own tensors, and needs them again after a restart."""

    def __init__(self, ctx):
        self.ctx, self.own = ctx, {f"layer.{i}": torch.zeros(256, 256) for i in range(6)}

    @operator(weights=Sharded(dim=None), streaming=True)
    def load(self, weights):
        for bucket in weights:
            for name, shards in bucket.items():
                for shard in shards:
                    shard.into(self.own[name])

    @operator(returns=Split())
    def sample(self):
        sums = [float(tensor.double().sum()) for tensor in self.own.values()]
        return Batch({"sum": np.array(sums) / (1 + self.ctx.rank)})


class Examiner:
    """Sees each version one step later. Its state is a hash of them all."""

    def __init__(self, ctx):
        self.seen = b""

    @operator(weights=Broadcast())
    def look(self, weights):
        found = hashlib.sha256(self.seen)
        for name, tensor in weights.items():
            found.update(name.encode() + tensor.numpy().tobytes())
        self.seen = found.digest()

    def snapshot(self):
        return {"seen": self.seen}

    def restore(self, state):
        self.seen = bytes(state["seen"])
'''
FLOW = """
from rolemesh import flow


@flow
def lending(job):
    job.rollout.load(job.trainer.weights())
    job.examiner.look(job.trainer.average(), lag=1)
    job.trainer.train(job.rollout.sample())
"""
JOB = """
name: {name}
flow: flow.py:lending
steps: 40
seed: 3
roles:
  trainer:
    use: function
    world_size: 2
    options: {{target: "roles.py:Trainer", kwargs: {{lends: {lends}}}}}
    resources: {{cpu: 0.1}}
  rollout: {{use: function, world_size: 2, options: {{target: "roles.py:Rollout"}}, resources: {{cpu: 0.1}}}}
  examiner: {{use: function, options: {{target: "roles.py:Examiner"}}, resources: {{cpu: 0.1}}}}
engine: {{options: {{stop_grace_s: 2}}}}
"""
NODES = ("--nodes", "2x(cpu=0.4)", "engine.options.snapshots.replicas=1")
DELTA = (
    *NODES,
    "plugins.transports=[{use: delta, options: {min_bytes: 100000}}]",
    'engine.options.transports.each={"trainer.weights -> rollout.load": delta,'
    ' "trainer.average -> examiner.look": delta}',
)
LITTLE = ("engine.options.retention.max_bytes=8000000",)


def ended(make_job: Make, name: str, *args: str, lends: bool = True) -> tuple[Job, dict[str, Any]]:
    job = make_job(name, extra=LADDER)
    (job.folder / "roles.py").write_text(ROLES)
    (job.folder / "flow.py").write_text(FLOW)
    text = JOB.format(name=name, lends=str(lends).lower())
    (job.folder / "job.yaml").write_text(one_engine(text + LADDER))
    done = job.run(*args)
    assert done.returncode == 0, done.stdout + done.stderr
    return job, {"sha256": job.result()["state_sha256"], "lines": [timeless(line) for line in job.metrics()]}


@pytest.mark.parametrize(
    ("seed", "more"),
    [
        (1, LITTLE),
        pytest.param(2, NODES, marks=pytest.mark.more),
        pytest.param(3, DELTA, marks=pytest.mark.more),
        *(pytest.param(seed, (), marks=pytest.mark.soak) for seed in range(4, 12)),
        *(pytest.param(seed, NODES, marks=pytest.mark.soak) for seed in range(12, 18)),
    ],
)
def test_a_job_that_lends_ends_like_one_that_copies(make_job: Make, seed: int, more: tuple[str, ...]) -> None:
    _, copied = ended(make_job, "copies", lends=False)
    job, disturbed = ended(make_job, f"killed-{seed}", *more, "--chaos", f"kills=6,seed={seed},targets=rank")
    assert disturbed == copied
    assert len(job.result()["recoveries"]) >= 3
