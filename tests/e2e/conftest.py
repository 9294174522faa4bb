"""Real jobs through the command line, on the local backend and on Ray; after each test nothing may be left."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import FLOW, JOB, ROLES, Job, leftovers, until


def job_in(folder: Path, name: str, backend: tuple[str, ...] = ("--backend", "local"), extra: str = "") -> Job:
    """A job of the three roles in `folder`; `extra` are more lines of its job file."""
    folder.mkdir(exist_ok=True)
    (folder / "roles.py").write_text(ROLES)
    (folder / "flow.py").write_text(FLOW)
    (folder / "job.yaml").write_text(JOB.format(name=name) + textwrap.dedent(extra))
    return Job(folder, name, backend)


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def make(name: str = "squares", backend: tuple[str, ...] = ("--backend", "local"), extra: str = "") -> Job:
        jobs.append(job_in(tmp_path / name, name, backend, extra))
        return jobs[-1]

    yield make
    for job in jobs:
        for process in job.started:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            if process.stdout is not None:
                process.stdout.close()
    ids = {job_id for job in jobs for job_id in job.ids()}
    until(lambda: not leftovers(ids), 15, "nothing is left of the jobs")
    until(lambda: not ray_leftovers(), 15, "nothing is left on Ray")


def ray_leftovers() -> set[str]:
    """Actors and placement groups of jobs on the Ray that this process is connected to, if it is."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return set()
    actors = {str(entry) for entry in ray.util.list_named_actors(all_namespaces=True)}
    groups = {str(group["name"]) for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"}
    return actors | groups


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """One Ray with two nodes for all tests of the session, to be joined by address; this process is connected to it."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2,
            "include_dashboard": False,
            "_system_config": {
                "health_check_initial_delay_ms": 500,
                "health_check_period_ms": 500,
                "health_check_timeout_ms": 500,
                "health_check_failure_threshold": 3,
            },
        },
    )
    cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    ray.init(cluster.address, namespace="tests", log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def ray_address(ray_cluster: Any) -> str:
    return str(ray_cluster.address)


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def backend(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The two backends; Ray is joined, not started, so that its start is paid once."""
    if request.param == "local":
        return ("--backend", "local")
    return ("--address", request.getfixturevalue("ray_address"))
