"""A role that runs out of memory goes on with more: the level `more-memory`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.e2e.harness import Job
from tests.e2e.ladder import ended_well, of_kind
from tests.waiting import until

from rolemesh_durable.control.client import ControlClient
from rolemesh_durable.extensions.rehearsal.requests import InjectFault
from rolemesh_ray.names import placement_groups

Make = Callable[..., Job]

HUNGRY = '''
import resource
from pathlib import Path

import numpy as np
from roles import Work

from rolemesh import Split, operator


class Hungry(Work):
    """Needs a third of a gigabyte from step 8 on, and keeps to what is reserved for it."""

    def __init__(self, ctx, **options):
        super().__init__(ctx, **options)

    @operator(rows=Split(), returns=Split())
    def square(self, rows):
        if self.ctx.step >= 8:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            soft, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (used + int(self.ctx.memory_gb * 1e9), hard))
            try:
                np.empty(330_000_000, np.uint8)
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        return super().square(rows)
'''
MEMORY = (
    "steps=300", "roles.work.options.target=hungry.py:Hungry", "roles.work.options.kwargs.sleep=0.02",
    "roles.work.world_size=2", "roles.work.resources={cpu: 0.1, memory_gb: 0.1, most: {memory_gb: 0.6}}",
    "engine.options.snapshots.persist_every=100",
)  # fmt: skip
LADDER = "failover=[{use: more-memory}, {use: process, options: {max_attempts: 1}}]"


def hungry(make_job: Make, nodes: str, *overrides: str, ray_address: str = "") -> tuple[Job, Any]:
    local = "--backend", "local", "--nodes", nodes
    job = make_job(backend=("--address", ray_address) if ray_address else local)
    (job.folder / "hungry.py").write_text(HUNGRY)
    return job, job.start(*MEMORY, LADDER, *overrides)


def given(job: Job) -> list[float]:
    return [each["data"]["resources"]["work"]["memory_gb"] for each in of_kind(job, "replanned")]


def is_over(job: Job) -> bool:
    return of_kind(job, "recovery_planned", "recovered")[-1]["kind"] == "recovered"


@pytest.mark.parametrize(
    "killed", [pytest.param(False, marks=pytest.mark.more), pytest.param(True, marks=pytest.mark.soak)]
)
def test_it_gets_more_where_it_is_and_then_where_there_is_more(make_job: Make, killed: bool) -> None:
    job, process = hungry(make_job, "1x(cpu=4,memory_gb=0.4),1x(cpu=4,memory_gb=1)")
    job.running()
    if killed:  # the next master goes on with what the first has given
        until(lambda: of_kind(job, "replanned"), "more memory")
        job.kill_process("master")
    until(lambda: given(job) == [0.2, 0.4] and is_over(job), "twice more memory")
    status = job.running()
    assert status.resources == {"work": {"cpu": 0.1, "gpu": 0.0, "memory_gb": 0.4}}
    assert {rank.node for rank in status.ranks if rank.role == "work"} == {"node-0", "node-1"}
    assert "each rank of work has been given cpu 0.1, memory_gb 0.4" in job.cli("status", job.name).stdout
    if killed:  # and gives a rank that fails for another reason no less
        with ControlClient(job.run_dir) as client:
            client.ask(InjectFault("kill", "work/0"))
        until(lambda: of_kind(job, "recovered")[-1]["data"]["level"] == "process", "recovered again")
    ended_well(job, process, 300)
    assert given(job) == [0.2, 0.4]
    assert status.epoch == 1 + killed


@pytest.mark.soak
@pytest.mark.parametrize(
    ("nodes", "override", "why"),
    [
        ("1x(cpu=4,memory_gb=1)", "roles.work.resources.most.memory_gb=0.2", "memory_gb 0.2, which is its limit"),
        ("1x(cpu=4,memory_gb=0.5)", "steps=300", "needs memory_gb 0.4, the most that is free on a node is "),
    ],
)
def test_beyond_its_limit_and_the_nodes_the_next_level_is_asked(
    make_job: Make, nodes: str, override: str, why: str
) -> None:
    job, process = hungry(make_job, nodes, override)
    out, _ = process.communicate()
    assert process.returncode == 1, out
    assert why in out
    assert {each["level"] for each in job.result()["recoveries"]} == {"more-memory", "process"}


@pytest.mark.ray
@pytest.mark.soak
def test_on_ray_it_is_reserved(make_job: Make, ray_address: str) -> None:
    job, process = hungry(make_job, "", ray_address=ray_address)
    job.running()
    until(lambda: given(job) == [0.2, 0.4] and is_over(job), "twice more memory")
    bundles = [bundle for table in placement_groups(job.name).values() for bundle in table["bundles"].values()]
    assert sum(bundle.get("memory", 0.0) for bundle in bundles) == pytest.approx(2 * 0.4e9, rel=0.01)
    ended_well(job, process, 300)
