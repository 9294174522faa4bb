"""Elastic roles start with the ranks that there is room for, and get more when nodes join."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.e2e.harness import Job
from tests.e2e.ladder import LADDER, SLOW, STEPS, total
from tests.waiting import until

from rolemesh_checkpoint import disk
from rolemesh_durable.control.client import ControlClient
from rolemesh_durable.extensions.rehearsal.requests import InjectFault

ELASTIC = "roles.work.world_size={min: 1, max: 3}"
WHERE = "roles.work.resources.custom.grow=1"


def ranks_of_work(job: Job) -> int:
    return int(json.loads((job.run_dir / "run.json").read_text())["roles"]["work"])


def test_an_elastic_role_starts_with_the_ranks_that_fit(make_job: Callable[..., Job]) -> None:
    job = make_job(backend=("--backend", "local", "--nodes", "1x(cpu=2)"))
    done = job.run(ELASTIC, "roles.work.resources.cpu=0.8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ranks_of_work(job) == 2
    too_small = job.run("roles.work.world_size={min: 3, max: 4}", "roles.work.resources.cpu=0.8")
    assert too_small.returncode == 2
    assert "rank 2 cannot be placed" in too_small.stderr


def test_a_job_that_loses_a_node_goes_on_with_fewer_ranks(make_job: Callable[..., Job]) -> None:
    job = make_job(backend=("--backend", "local", "--nodes", "2x(cpu=1)"), extra=LADDER)
    work = ("roles.work.world_size={min: 1, max: 2}", "roles.work.resources.cpu=0.8")
    process = job.start(*SLOW, *work, "failover=[{use: process}, {use: job}]")
    until(lambda: disk.newest_complete(job.run_dir) > 0, "a snapshot on disk")
    assert ranks_of_work(job) == 2
    nodes = {rank.node for rank in job.running().ranks if rank.role == "work"}
    with ControlClient(job.run_dir) as client:
        client.ask(InjectFault("kill", f"node:{max(nodes)}"))
    said, _ = process.communicate()
    assert process.returncode == 0, said
    assert f"{max(nodes)} lost: work 2 → 1" in said
    assert ranks_of_work(job) == 1
    assert job.result()["restored_step"] > 0
    assert job.metrics()[-1]["reward"] == total(STEPS)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.ray
def test_a_job_goes_on_with_more_ranks_when_nodes_join(make_job: Callable[..., Job], ray_cluster: Any) -> None:
    first = ray_cluster.add_node(num_cpus=1, resources={"grow": 1})
    ray_cluster.wait_for_nodes()
    job = make_job(backend=("--address", ray_cluster.address))
    ladder = "failover=[{use: process}]"
    driver = job.start("steps=1500", "roles.work.options.kwargs.sleep=0.01", ELASTIC, WHERE, ladder)
    job.running(5)
    assert ranks_of_work(job) == 1
    second = ray_cluster.add_node(num_cpus=1, resources={"grow": 2})
    ray_cluster.wait_for_nodes()
    until(lambda: (job.run_dir / "run.json").exists() and ranks_of_work(job) == 3, "three ranks of work")
    said, _ = driver.communicate()
    assert driver.returncode == 0, said
    assert "nodes have joined: work 1 → 3" in said
    assert job.result()["restored_step"] == -1
    calm = job.run("steps=1500", "name=calm", "roles.work.world_size=2", "roles.work.options.kwargs.sleep=0")
    assert calm.returncode == 0, calm.stdout + calm.stderr
    other = json.loads((job.folder / "runs" / "calm" / "result.json").read_text())
    assert job.result()["state_sha256"]["sink"] == other["state_sha256"]["sink"]
    for node in (first, second):
        ray_cluster.remove_node(node)
