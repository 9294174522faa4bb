"""A job of more than a million small steps takes at its end what it took at its beginning, of everything."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from tests.e2e.harness import Job, leftovers
from tests.soak.footprint import Sample, changes, sample, table
from tests.waiting import until

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(3600)]

STEPS = 1_200_000
WARM_UP_S, SPAN_S = 30.0, 60.0
EVERY_S = 1.0
MAY_GROW = 0.05

ROLES = '''
from rolemesh import Batch


class Source:
    """Two numbers a step."""

    def __init__(self, ctx):
        self.ctx, self.made = ctx, 0

    def next(self):
        self.made += 2
        return Batch({"number": [self.ctx.step, self.made]})

    def snapshot(self):
        return {"made": self.made}

    def restore(self, state):
        self.made = state["made"]


class Sink:
    """Adds up what it gets."""

    def __init__(self, ctx):
        self.ctx, self.total = ctx, 0

    def add(self, numbers):
        self.total += sum(numbers["number"])
        self.ctx.count(rows=numbers.rows)

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
name: million
flow: flow.py:sums
steps: {STEPS}
roles:
  source: {{use: function, options: {{target: "roles.py:Source"}}, resources: {{cpu: 0.1}}}}
  sink: {{use: function, options: {{target: "roles.py:Sink"}}, resources: {{cpu: 0.1}}}}
failover: [{{use: process}}, {{use: job}}]
engine: {{options: {{snapshots: {{every: 1, persist_every: 5000}}}}}}
metrics: {{every: 10000}}
"""


def watched(job: Job, driver: subprocess.Popen[str]) -> list[Sample]:
    """Samples of the whole run."""
    samples: list[Sample] = []
    while driver.poll() is None:
        status = job.status()
        if status is not None and status.state == "running":
            taken = sample(job, status, time.monotonic())
            if taken is not None:
                samples.append(taken)
        time.sleep(EVERY_S)
    return samples


def test_a_job_of_a_million_steps_takes_no_more_at_its_end_than_at_its_beginning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", JOB)):
        (tmp_path / name).write_text(content)
    job = Job(tmp_path, "million", ("--backend", "local"))
    with (tmp_path / "console").open("w") as console:
        driver = job.start(console=console)
        try:
            samples = watched(job, driver)
        finally:
            driver.kill()  # and with it the job, where the test is ended early
            driver.wait()
    assert driver.returncode == 0, (tmp_path / "console").read_text()[-3000:]
    assert job.result()["committed_steps"] == STEPS
    begun, ended = samples[0].at + WARM_UP_S, samples[-1].at
    first = [each for each in samples if begun <= each.at <= begun + SPAN_S]
    last = [each for each in samples if each.at >= ended - SPAN_S]
    found = changes(first, last)
    with capsys.disabled():
        print(
            f"\n{STEPS:,} steps in {ended - samples[0].at:.0f} s: in the first minute, and in the last\n{table(found)}"
        )
    assert first[-1].at < last[0].at, "the job is too short to have a first and a last minute"
    grown = [change for change in found if change.grown(MAY_GROW)]
    assert not grown, table(grown)
    until(lambda: not leftovers(job.ids()), "nothing is left of the job")
