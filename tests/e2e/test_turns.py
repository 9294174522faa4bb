"""Roles that take turns on a slot: never two of them loaded at once, and the same results as side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.harness import Job

ROLES = '''
import fcntl
import time

import numpy as np

from rolemesh import Batch, Broadcast, Split, operator


class Device:
    """Loaded, it holds a lock that a device has once; `log` tells who had it, in order."""

    def __init__(self, ctx, sleep=0.0, finish_at=-1):
        self.ctx, self.sleep, self.total, self.lock, self.finish_at = ctx, sleep, 0.0, None, finish_at
        self.onload()

    def onload(self):
        lock = open(self.ctx.base / f"device-{self.ctx.rank}", "a")
        if self.ctx.turns:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.write(f"{self.ctx.role} loads\\n")
        lock.flush()
        self.lock = lock

    def offload(self):
        self.lock.write(f"{self.ctx.role} makes room\\n")
        self.lock.close()
        self.lock = None

    def snapshot(self):
        assert self.lock is not None
        return {"total": self.total}

    def restore(self, state):
        assert self.lock is not None
        self.total = state["total"]

    def _work(self, rows):
        assert self.lock is not None
        if self.ctx.step == self.finish_at:
            self.ctx.finish("enough")
        time.sleep(self.sleep)
        self.total = (self.total * 31 + float(rows["x"].sum())) % 1e9
        return rows | {"x": rows["x"] * 2 + self.total % 7}


class Prompts:
    def __init__(self, ctx):
        self.ctx = ctx

    @operator(returns=Split())
    def next(self):
        return Batch({"x": self.ctx.rng(self.ctx.step).integers(0, 100, 8).astype(np.float64)})


class Rollout(Device):
    @operator(prompts=Split(), returns=Split())
    def generate(self, prompts):
        for at in range(0, prompts.rows, 2):
            yield self._work(prompts[at : at + 2])

    @operator(weights=Broadcast())
    def update(self, weights):
        assert self.lock is not None
        self.total = (self.total + float(np.sum(weights))) % 1e9


class Trainer(Device):
    @operator(samples=Split(), returns=Split(), streaming=True)
    def score(self, samples):
        for chunk in samples:
            yield self._work(chunk)

    @operator(samples=Split(), returns=Broadcast())
    def train(self, samples):
        self._work(samples)
        return np.float64([self.total])
'''

FLOW = """
from rolemesh import flow


@flow
def training(job):
    samples = job.rollout.generate(job.prompts.next())
    weights = job.trainer.train(job.trainer.score(samples))
    job.rollout.update(weights, lag={"weights": 1}, every=2)
"""

JOB = """
name: turns
flow: flow.py:training
steps: 20
seed: 7
roles:
  prompts: {use: function, options: {target: "roles.py:Prompts"}, resources: {cpu: 0.1}}
  rollout: {use: function, world_size: 2, options: {target: "roles.py:Rollout"}, resources: {cpu: 0.1}}
  trainer: {use: function, world_size: 2, options: {target: "roles.py:Trainer"}, resources: {cpu: 0.1}}
placement:
  use: collocation
  options: {groups: [{roles: [rollout, trainer], turns: true}]}
failover:
  - {use: process, options: {max_attempts: 50}}
  - {use: job, options: {max_attempts: 20}}
engine: {options: {hang: {after_s: 20}, stop_grace_s: 2}}
"""

SIDE_BY_SIDE = "placement.options.groups=[[rollout, trainer]]"


def write(job: Job) -> Job:
    for name, text in {"roles.py": ROLES, "flow.py": FLOW, "job.yaml": JOB}.items():
        (job.folder / name).write_text(text)
    return job


def ended(job: Job, *args: str) -> dict[str, str]:
    """Run the job to its end; the digests of its roles."""
    done = job.run(*args)
    assert done.returncode == 0, done.stdout + done.stderr
    digests: dict[str, str] = json.loads((job.run_dir / "result.json").read_text())["state_sha256"]
    return digests


def loads(folder: Path, rank: int) -> list[str]:
    return (folder / f"device-{rank}").read_text().splitlines()


Make = Callable[..., Job]


def test_one_role_is_loaded_at_a_time_and_results_are_those_of_side_by_side(make_job: Make) -> None:
    free = write(make_job("turns", backend=("--backend", "local")))
    expected = ended(free, SIDE_BY_SIDE)
    assert "makes room" not in "".join(loads(free.folder, 0))
    (free.folder / "device-0").unlink()
    (free.folder / "device-1").unlink()
    assert ended(free) == expected
    for rank in range(2):
        told = loads(free.folder, rank)
        assert [line for line in told if line.endswith("loads")][:4] == ["rollout loads", "trainer loads"] * 2
        assert told.count("trainer loads") >= 20


@pytest.mark.soak
def test_roles_that_take_turns_end_early_like_a_job_with_fewer_steps(make_job: Make) -> None:
    job = write(make_job("turns", backend=("--backend", "local")))
    told = "roles.rollout.options.kwargs={finish_at: 6, sleep: 0.005}"
    early = ended(job, "steps=null", told)
    steps = json.loads((job.run_dir / "result.json").read_text())["committed_steps"]
    assert steps > 6
    assert ended(job, f"steps={steps}") == early


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2, 3))])
def test_ranks_that_are_killed_take_their_turn_again(make_job: Make, seed: int) -> None:
    job = write(make_job("turns", backend=("--backend", "local")))
    expected = ended(job, SIDE_BY_SIDE)
    told = "roles.rollout.options.kwargs={sleep: 0.01}"
    chaos = ended(job, told, "--chaos", f"kills=6,seed={seed},targets=rank")
    assert chaos == expected
