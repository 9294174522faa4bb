"""A run whose record tests read: two roles, 20 steps, one rank killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.small_jobs import run_job

ROLES = """
import time
import numpy as np
from rolemesh import Batch, Split, Workload, operator

class Source(Workload):
    @operator(returns=Split())
    def make(self):
        time.sleep(0.02)
        return Batch({"number": np.arange(4), "text": ["<b>\\x1b[31m"] * 4})

class Sink(Workload):
    def setup(self, ctx):
        self.ctx = ctx

    @operator(batch=Split())
    def take(self, batch):
        time.sleep(0.05)
        self.ctx.metric(reward=float(batch.rows))
"""
FLOW = """
from rolemesh import flow

@flow
def numbers(job):
    job.sink.take(job.source.make())
"""
JOB = """
name: seen
flow: flow.py:numbers
steps: 20
roles:
  source: {use: "roles:Source"}
  sink: {use: "roles:Sink"}
failover: [{use: process}]
plugins: {extensions: [{use: recorder, options: {rows: {source.make: 1/2}}}]}
"""


@pytest.fixture(scope="session")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the run. Tests do not change it."""
    folder = tmp_path_factory.mktemp("seen")
    for name, text in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", JOB)):
        (folder / name).write_text(text)
    run_job(folder, "--chaos", "kills=1,targets=sink/0")
    return folder / "runs" / "seen"
