"""Large values that roles pass on. Ranks link them instead of copying, and they are exact after any kill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.chaos.harness import timeless
from tests.e2e.harness import Job, one_engine
from tests.e2e.ladder import LADDER

Make = Callable[..., Job]

ROLES = '''
import glob
import hashlib
import os
import time

import numpy as np

from rolemesh import Batch, Broadcast, Split, operator

ROWS = 12
LINKED = "/dev/shm/rolemesh-*/**/slot-judge-*"


class Source:
    """Half a megabyte of rows on each rank, which are the step's."""

    def __init__(self, ctx):
        self.ctx, self.made = ctx, 0

    @operator(returns=Split())
    def next(self):
        rows = range(self.ctx.rank * ROWS, (self.ctx.rank + 1) * ROWS)
        rng = [np.random.default_rng([self.ctx.seed, self.ctx.step, row]) for row in rows]
        self.made += 1
        return Batch({"x": np.stack([r.random(4000) for r in rng]), "y": np.stack([r.random(2000) for r in rng])})

    def snapshot(self):
        return {"made": self.made}

    def restore(self, state):
        self.made = int(state["made"])


class Work:
    """Adds a column; every third time it replaces one."""

    def __init__(self, ctx):
        self.ctx = ctx

    @operator(rows=Split(), returns=Split())
    def score(self, rows):
        time.sleep(0.005)
        more = {"y": rows["y"] + self.ctx.step} if self.ctx.step % 3 == 2 else {"reward": rows["x"][:, :2000] * 2}
        return rows | more


class Judge:
    """Hands on what it gets, and says the same once more."""

    @operator(rows=Split(), returns=Split())
    def judge(self, rows):
        yield rows
        yield rows


class Sink:
    """Its state is a hash of all that it has seen."""

    def __init__(self, ctx):
        self.ctx, self.seen = ctx, b""

    @operator(rows=Broadcast())
    def add(self, rows):
        assert rows.rows == 4 * ROWS
        found = hashlib.sha256(self.seen)
        for name in sorted(rows):
            found.update(name.encode() + np.ascontiguousarray(rows[name]).tobytes())
        self.seen = found.digest()
        self.ctx.record(linked=[sum(linked(path) for path in glob.glob(LINKED, recursive=True))])

    def snapshot(self):
        return {"seen": self.seen}

    def restore(self, state):
        self.seen = bytes(state["seen"])


def linked(path):
    try:
        return os.stat(path).st_nlink > 1
    except FileNotFoundError:
        return False
'''
FLOW = """
from rolemesh import flow


@flow
def large(job):
    job.sink.add(job.judge.judge(job.work.score(job.source.next())))
"""
JOB = """
name: {name}
flow: flow.py:large
steps: 50
seed: 3
roles:
  source: {{use: function, world_size: 2, options: {{target: "roles.py:Source"}}, resources: {{cpu: 0.1}}}}
  work: {{use: function, world_size: 2, options: {{target: "roles.py:Work"}}, resources: {{cpu: 0.1}}}}
  judge: {{use: function, world_size: 2, options: {{target: "roles.py:Judge"}}, resources: {{cpu: 0.1}}}}
  sink: {{use: function, options: {{target: "roles.py:Sink"}}, resources: {{cpu: 0.1}}}}
engine: {{options: {{stop_grace_s: 2}}}}
"""
NODES = ("--nodes", "2x(cpu=0.4)", "engine.options.snapshots.replicas=1")
LITTLE = ("engine.options.retention.max_bytes=8000000",)


def ended(make_job: Make, name: str, *args: str) -> tuple[Job, dict[str, Any], list[dict[str, Any]]]:
    job = make_job(name, extra=LADDER)
    (job.folder / "roles.py").write_text(ROLES)
    (job.folder / "flow.py").write_text(FLOW)
    (job.folder / "job.yaml").write_text(one_engine(JOB.format(name=name) + LADDER))
    done = job.run(*args)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [timeless(line) for line in job.metrics()]
    records = [line.pop("records") for line in lines]
    return job, {"sha256": job.result()["state_sha256"], "lines": lines}, records


@pytest.mark.parametrize(
    ("seed", "more"),
    [
        (1, LITTLE),
        *(pytest.param(seed, (), marks=pytest.mark.soak) for seed in range(2, 12)),
        *(pytest.param(seed, NODES, marks=pytest.mark.soak) for seed in range(12, 18)),
    ],
)
def test_passed_on_values_are_exact_despite_kills(make_job: Make, seed: int, more: tuple[str, ...]) -> None:
    _, undisturbed, records = ended(make_job, "calm")
    assert sum(linked for record in records for linked in record["linked"]) > len(records)
    job, disturbed, _ = ended(make_job, f"killed-{seed}", *more, "--chaos", f"kills=6,seed={seed},targets=rank")
    assert disturbed == undisturbed
    assert len(job.result()["recoveries"]) >= 3
