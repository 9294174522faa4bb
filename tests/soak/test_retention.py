"""A job that keeps as much as it may, for hours of steps: memory stays at its limit, and ranks that are killed come
back with what was kept."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.e2e.harness import Job, leftovers
from tests.soak.footprint import files, taken
from tests.waiting import until

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(1800)]

STEPS = 60_000
MAX_MIB = 48
EVERY = 500
"""Steps between snapshots: 20 MB of values."""

ROLES = '''
import numpy as np


class Source:
    """40 KB that tell their step."""

    def __init__(self, ctx):
        self.ctx, self.made = ctx, 0

    def next(self):
        self.made += 1
        return np.full(5000, self.ctx.step)

    def snapshot(self):
        return {"made": self.made}

    def restore(self, state):
        self.made = state["made"]


class Sink:
    """Takes each step once."""

    def __init__(self, ctx):
        self.ctx, self.total = ctx, 0

    def add(self, x):
        assert x[0] == x[-1] == self.ctx.step, "this is not what was sent"
        self.total += int(x[0])

    def snapshot(self):
        return {"total": self.total}

    def restore(self, state):
        self.total = state["total"]
'''

FLOW = """
from rolemesh import flow


@flow
def sums(job):
    job.sink.add(job.source.next())
"""

JOB = f"""
name: retention
flow: flow.py:sums
steps: {STEPS}
roles:
  source: {{use: function, options: {{target: "roles.py:Source"}}, resources: {{cpu: 0.1}}}}
  sink: {{use: function, options: {{target: "roles.py:Sink"}}, resources: {{cpu: 0.1}}}}
edges: {{credits: 64}}
failover: [{{use: process, options: {{max_attempts: 1000}}}}]
engine:
  options:
    retention: {{max_bytes: {MAX_MIB << 20}}}
    snapshots: {{every: {EVERY}, persist_every: 10000}}
metrics: {{every: 1000}}
"""


def test_retained_values_stay_within_their_limit_in_a_long_job_with_kills(tmp_path: Path) -> None:
    for name, content in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", JOB)):
        (tmp_path / name).write_text(content)
    job = Job(tmp_path, "retention", ("--backend", "local", "--chaos", "kills=8,seed=3,targets=rank"))
    most: list[float] = []
    with (tmp_path / "console").open("w") as console:
        driver = job.start(console=console)
        try:
            while driver.poll() is None:
                folders = [path for each in job.ids() for path in Path("/dev/shm").glob(f"rolemesh-*{each}*")]
                kept = [path for path in files(folders) if path.name.startswith(("slot-source", "log-source"))]
                most.append(taken(kept))
                time.sleep(0.5)
        finally:
            driver.kill()
            driver.wait()
    assert driver.returncode == 0, (tmp_path / "console").read_text()[-3000:]
    assert job.result()["committed_steps"] == STEPS
    assert max(most) > MAX_MIB / 3, "it keeps what it may"
    # Above the limit: what one step makes, and what it had made before it waits for the commit of its last snapshot.
    assert max(most) < MAX_MIB + EVERY * 0.04 + 2
    until(lambda: not leftovers(job.ids()), "nothing is left of the job")
