"""A rank of a real process group that is slow, named while all of the group take as long."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.e2e.harness import Job
from tests.e2e.ladder import of_kind

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
steps: 100
roles:
  data: {use: "roles.py:Data", resources: {cpu: 0.1}}
  group: {use: "roles.py:Group", world_size: 3, resources: {cpu: 0.1}}
engine: {options: {stragglers: {for_s: 6}}}
failover: [{use: process}]
"""
FLOW = """
from rolemesh import flow


@flow
def uneven(job):
    job.group.train(job.data.next())
"""


@pytest.mark.soak
def test_a_rank_that_works_while_its_mates_wait_is_a_straggler(make_job: Callable[..., Job]) -> None:
    job = make_job("uneven")
    for name, text in (("roles.py", ROLES), ("job.yaml", JOB), ("flow.py", FLOW)):
        (job.folder / name).write_text(text)
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    [event] = of_kind(job, "straggler")
    assert (event["data"]["role"], event["data"]["rank"]) == ("group", 1)
    assert "they wait for it" in event["data"]["message"]
