"""A state that takes long to copy: few snapshots by default, nobody waits for them, and a killed rank is exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.e2e.harness import Job
from tests.waiting import until

Make = Callable[..., Job]

ROLES = '''
import time

import numpy as np

from rolemesh import Batch, Split, operator


class Source:
    """40 KB of rows a step."""

    def __init__(self, ctx):
        self.ctx = ctx

    @operator(returns=Split())
    def next(self):
        return Batch({"x": np.random.default_rng([self.ctx.seed, self.ctx.step]).random((1, 5000))})


class Model:
    """96 MB of weights, of which a step changes some."""

    def __init__(self, ctx, pause=0.02):
        self.ctx, self.pause = ctx, pause
        self.weights, self.taken = np.zeros(12_000_000), 0

    @operator(rows=Split())
    def train(self, rows):
        time.sleep(self.pause)
        self.weights[:5000] += rows["x"][0] * (1 + self.ctx.step)
        self.ctx.metric(taken=float(self.taken), loss=float(self.weights[:5000].sum()))

    def snapshot(self):
        self.taken += 1
        return {"weights": self.weights}

    def restore(self, state):
        self.weights[:] = state["weights"]
'''
FLOW = """
from rolemesh import flow


@flow
def large(job):
    job.model.train(job.source.next())
"""
JOB = """
name: {name}
flow: flow.py:large
steps: 120
seed: 3
roles:
  source: {{use: function, options: {{target: "roles.py:Source"}}, resources: {{cpu: 0.1}}}}
  model: {{use: function, options: {{target: "roles.py:Model"}}, resources: {{cpu: 0.1}}}}
failover: [{{use: process}}, {{use: job}}]
engine: {{options: {{stop_grace_s: 2}}}}
"""


def large(make_job: Make, name: str = "large") -> Job:
    job = make_job(name)
    (job.folder / "roles.py").write_text(ROLES)
    (job.folder / "flow.py").write_text(FLOW)
    (job.folder / "job.yaml").write_text(JOB.format(name=name))
    return job


@pytest.mark.soak
def test_few_snapshots_are_taken_and_a_killed_rank_ends_as_if_it_had_not_been(make_job: Make) -> None:
    undisturbed, killed = large(make_job), large(make_job, "killed")
    done = undisturbed.run()
    assert done.returncode == 0, done.stdout + done.stderr
    before = undisturbed.metrics()
    assert before[-1]["taken"] <= 11, "each tenth would go to disk if they cost little"
    done = killed.run("--chaos", "kills=2,seed=1,targets=rank")
    assert done.returncode == 0, done.stdout + done.stderr
    assert killed.result()["recoveries"]
    assert [line["loss"] for line in killed.metrics()] == [line["loss"] for line in before]


@pytest.mark.soak
def test_a_rank_with_little_memory_does_not_wait_for_a_distant_snapshot(make_job: Make) -> None:
    job = large(make_job)
    done = job.run("steps=150", "engine.options.retention.max_bytes=1048576", "roles.model.options.kwargs.pause=0.001")
    assert done.returncode == 0, done.stdout + done.stderr
    waited = [line["roles"]["model"]["waiting_s"] for line in job.metrics()]
    assert max(waited) < 4.0, "as long as one takes, not as long as they are apart: a hundred times that"
    assert job.metrics()[-1]["taken"] >= 4, "the source keeps the rows of 26 steps"


@pytest.mark.soak
def test_it_finishes_soon_when_it_is_to(make_job: Make) -> None:
    job = large(make_job)
    driver = job.start("steps=null")
    until(lambda: len(job.metrics()) > 40 if (job.run_dir / "metrics.jsonl").exists() else False, "forty steps")
    before = job.metrics()[-1]["step"]
    stopped = job.cli("stop", job.name, "--drain")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert driver.wait() == 0
    steps_a_second = 50  # at most: each takes 20 ms
    assert job.metrics()[-1]["step"] - before < 25 * steps_a_second, "what is granted, some seconds of steps"
