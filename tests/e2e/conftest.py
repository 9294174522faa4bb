"""Real jobs through the command line, on the local backend and on Ray; after each test nothing may be left."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import FLOW, JOB, ROLES, Job, nothing_is_left, one_engine
from tests.waiting import until


def job_in(folder: Path, name: str, backend: tuple[str, ...] = ("--backend", "local"), extra: str = "") -> Job:
    """A job of the three roles in `folder`; `extra` are more lines of its job file."""
    folder.mkdir(exist_ok=True)
    (folder / "roles.py").write_text(ROLES)
    (folder / "flow.py").write_text(FLOW)
    (folder / "job.yaml").write_text(one_engine(JOB.format(name=name) + textwrap.dedent(extra)))
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
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if job.status() is not None:  # a test that fails must not leave a detached job to those after it
            job.cli("stop", job.name)
    ids = {job_id for job in jobs for job_id in job.ids()}
    nothing_is_left(ids)
    until(lambda: not ray_leftovers(), "nothing is left on Ray")


def ray_leftovers() -> set[str]:
    """Actors and placement groups of jobs on the Ray that this process is connected to, if it is."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return set()
    actors = {str(entry) for entry in ray.util.list_named_actors(all_namespaces=True)}
    groups = {str(group["name"]) for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"}
    return actors | groups


@pytest.fixture(params=["local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow, pytest.mark.soak])])
def backend(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The two backends, the second in the soak: what Ray does in a way of its own has tests of its own. It is joined,
    not started, so that its start is paid once."""
    if request.param == "local":
        return ("--backend", "local")
    return ("--address", request.getfixturevalue("ray_address"))
