"""An operator of a called role waits for the end of its callers' step, so that no step sees two of its values."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import Job, nothing_is_left
from tests.e2e.ladder import pids

STEPS = 12
ROLES = '''
import asyncio

from rolemesh import service


class Agent:
    """Asks three times in each step, slower on rank 1."""

    def __init__(self, ctx):
        self.ctx = ctx

    async def act(self):
        seen = []
        for _ in range(3):
            await asyncio.sleep(0.01 + 0.05 * self.ctx.rank)
            seen.append(await self.ctx.call("box", "present"))
        return seen


class Box:
    """Has the value of the last step."""

    def __init__(self, ctx):
        self.ctx, self.value = ctx, -1

    def load(self, value) -> None:
        self.ctx.wait_for_callers()
        self.value = value

    @service(concurrency=8)
    async def present(self):
        caller = self.ctx.called_by
        while caller.step > self.ctx.step:
            await asyncio.sleep(0.001)
        return self.value


class Source:
    def __init__(self, ctx):
        self.ctx = ctx

    def next(self):
        return self.ctx.step


class Sink:
    def __init__(self, ctx):
        self.ctx = ctx

    def note(self, seen) -> None:
        self.ctx.record(seen=sorted(seen))
'''
FLOW = """
from rolemesh import flow


@flow
def waits(job):
    job.sink.note(job.agent.act(calls=[job.box]))
    job.box.load(job.source.next())
"""
JOB = f"""
name: waits
flow: waits_flow.py:waits
steps: {STEPS}
failover: [{{use: process}}]
roles:
  agent: {{use: function, world_size: 2, options: {{target: "waits_roles.py:Agent"}}, resources: {{cpu: 0.1}}}}
  box: {{use: function, options: {{target: "waits_roles.py:Box"}}, resources: {{cpu: 0.1}}}}
  source: {{use: function, options: {{target: "waits_roles.py:Source"}}, resources: {{cpu: 0.1}}}}
  sink: {{use: function, options: {{target: "waits_roles.py:Sink"}}, resources: {{cpu: 0.1}}}}
observers: []
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    for name, text in (("waits_roles.py", ROLES), ("waits_flow.py", FLOW), ("job.yaml", JOB)):
        (tmp_path / name).write_text(text)
    made = Job(tmp_path, "waits", ("--backend", "local"))
    yield made
    nothing_is_left(made.ids())


@pytest.mark.parametrize(
    "victim", [pytest.param("", marks=pytest.mark.soak), pytest.param("box/0", marks=pytest.mark.soak), "agent/1"]
)
def test_all_calls_of_a_step_see_one_value(job: Job, victim: str) -> None:
    process = job.start()
    if victim:
        os.kill(pids(job.running(3))[victim], signal.SIGKILL)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert [line["records"]["seen"] for line in job.metrics()] == [[step - 1] * 6 for step in range(STEPS)]


def test_the_inline_engine_runs_such_a_flow(job: Job) -> None:
    process = Job(job.folder, job.name, ()).start("--engine", "inline")
    out, _ = process.communicate()
    assert process.returncode == 0, out
