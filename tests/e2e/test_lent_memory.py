"""Weights in lent memory: consumers read them in place, and every kill ends like the same job without lending."""

from __future__ import annotations

import json
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
  rollout: {{use: function, world_size: {size}, options: {{target: "roles.py:Rollout"}}, resources: {{cpu: 0.1}}}}
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


SMALL = ("engine.options.transports.weights={use: delta, options: {min_bytes: 100000}}",)
APART = ("--nodes", "6x(cpu=0.1)", "engine.options.snapshots.replicas=1", *SMALL, "steps=12")
"""Each rank has a node of its own, and one node is free. rollout/0, on node2, gives the weights to rollout/1."""


def made(make_job: Make, name: str, *, lends: bool = True, roles: str = ROLES, size: str = "2") -> Job:
    job = make_job(name, extra=LADDER)
    (job.folder / "roles.py").write_text(roles)
    (job.folder / "flow.py").write_text(FLOW)
    text = JOB.format(name=name, lends=str(lends).lower(), size=size)
    (job.folder / "job.yaml").write_text(one_engine(text + LADDER))
    return job


def ended(make_job: Make, name: str, *args: str, lends: bool = True) -> tuple[Job, dict[str, Any]]:
    job = made(make_job, name, lends=lends)
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


@pytest.mark.more
@pytest.mark.parametrize(
    "targets", ["agent:node0,agent:node2", pytest.param("agent:node0,agent:node2,rollout/0", marks=pytest.mark.soak)]
)
def test_agents_of_the_trainer_and_of_a_relay_die_and_the_job_ends_as_undisturbed(make_job: Make, targets: str) -> None:
    _, undisturbed = ended(make_job, "whole", *APART)
    job, disturbed = ended(make_job, "killed", *APART, "--chaos", f"kills=4,seed=5,targets={targets}")
    assert disturbed == undisturbed
    killed = {event["data"]["target"] for event in job.events() if event["kind"] == "injected"}
    assert {"node0", "node2"} <= killed
    asked = "select value_bytes, travelled_bytes from edges where producer = 'trainer.weights'"
    found = job.cli("sql", str(job.run_dir), asked, "--format", "json")
    (edge,) = json.loads(found.stdout)
    assert 0 < edge["travelled_bytes"] <= edge["value_bytes"]


@pytest.mark.more
@pytest.mark.parametrize("nodes", [(), ("--nodes", "7x(cpu=0.1)", *SMALL)], ids=["one node", "delta between nodes"])
def test_rollouts_that_come_and_go_change_nothing_for_the_trainer(make_job: Make, nodes: tuple[str, ...]) -> None:
    # The first rank alone counts, and its rows all go to one trainer. It gives the others time to come and go.
    roles = ROLES.replace("/ (1 + self.ctx.rank)", "* (self.ctx.rank == 0)").replace(
        "        sums =", "        if not os.path.exists('ready'):\n            time.sleep(0.3)\n        sums ="
    )
    found = []
    for name, sizes in (("alone", ()), ("scaled", (4, 2, 3))):
        job = made(make_job, name, roles=f"import time\n{roles}", size="{min: 2, max: 4, start: 2}")
        if not sizes:
            (job.folder / "ready").touch()
        process = job.start(*nodes, "steps=200")
        for size in sizes:
            job.running(step=2)
            said = job.cli("scale", name, f"rollout={size}")
            assert said.returncode == 0, said.stderr
        (job.folder / "ready").touch()
        process.communicate()
        found.append(job.result()["state_sha256"])
        assert process.returncode == 0
    assert found[0] == found[1]
