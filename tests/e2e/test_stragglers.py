"""Slow ranks are named: of a process group, though all of it take as long, and of parameter servers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.harness import Job
from tests.e2e.ladder import of_kind, pids
from tests.waiting import until

ROLES = """
import time

from rolemesh import Broadcast, Workload, operator


class Data(Workload):
    @operator(returns=Broadcast())
    def next(self):
        return 1


class Group(Workload):
    group = "collective"
    preload = ("torch.distributed",)

    def setup(self, ctx):
        import rolemesh_torch

        self.work_s = 0.15 if ctx.rank == 1 else 0.02
        rolemesh_torch.join(ctx)

    @operator(one=Broadcast())
    def train(self, one):
        import torch

        began = time.process_time()
        while time.process_time() < began + self.work_s:
            pass
        torch.distributed.all_reduce(torch.ones(4))
"""
JOB = """
name: uneven
flow: flow.py:uneven
steps: 800
roles:
  data: {use: "roles.py:Data", resources: {cpu: 0.1}}
  group: {use: "roles.py:Group", world_size: 3, resources: {cpu: 0.1}}
failover: [{use: process}]
"""
FLOW = """
from rolemesh import flow


@flow
def uneven(job):
    job.group.train(job.data.next())
"""


@pytest.mark.more
def test_a_rank_that_works_while_its_mates_wait_is_a_straggler(make_job: Callable[..., Job]) -> None:
    job = make_job("uneven")
    for name, text in (("roles.py", ROLES), ("job.yaml", JOB), ("flow.py", FLOW)):
        (job.folder / name).write_text(text)
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    [event] = of_kind(job, "straggler")
    assert (event["data"]["role"], event["data"]["rank"]) == ("group", 1)
    assert "they wait for it" in event["data"]["message"]


SERVERS = """
name: servers
flow: flow.py:served
steps: null
roles:
  data: {use: "learners.py:Data", resources: {cpu: 0.1}}
  ps:
    use: embeddings
    world_size: 3
    resources: {cpu: 0.1}
    options: {tables: {count: {dim: 2}}}
  learner: {use: "learners.py:Learner", resources: {cpu: 0.1}}
failover: [{use: process}]
"""
SERVED = """
from rolemesh import flow


@flow
def served(job):
    keys = job.data.next()
    job.ps.update(job.learner.train(keys, job.ps.lookup(keys)), lag=1)


@flow
def called(job):
    job.learner.train(job.data.next(), calls=[job.ps])
"""


@pytest.mark.soak
@pytest.mark.parametrize("flow", ["served", "called"])
def test_a_parameter_server_that_is_stopped_again_and_again_is_a_straggler(
    make_job: Callable[..., Job], flow: str
) -> None:
    job = make_job("servers")
    learners = Path(__file__).parents[2] / "plugins/workloads/embeddings/tests/learners.py"
    for name, text in (("learners.py", learners.read_text()), ("job.yaml", SERVERS), ("flow.py", SERVED)):
        (job.folder / name).write_text(text)
    learner = {"served": "Learner", "called": "Caller"}[flow]
    driver = job.start(f"flow=flow.py:{flow}", f"roles.learner.use=learners.py:{learner}")
    slow = pids(job.running(3))["ps/1"]
    until(lambda: of_kind(job, "straggler") or paused(slow), "a straggler")
    [event] = of_kind(job, "straggler")
    assert (event["data"]["role"], event["data"]["rank"]) == ("ps", 1)
    assert job.cli("stop", "servers", "--drain").returncode == 0
    assert driver.wait() == 0


def paused(pid: int) -> bool:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.2)
    os.kill(pid, signal.SIGCONT)
    return False
