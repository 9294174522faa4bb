"""The run that every run with failures is compared with, and jobs of which nothing may be left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.harness import ChaosJob, End
from tests.e2e.conftest import ray_leftovers
from tests.e2e.harness import nothing_is_left
from tests.waiting import until

LOCAL = ("--backend", "local")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> End:
    """How the job ends when nothing fails; computed once."""
    job = ChaosJob(tmp_path_factory.mktemp("undisturbed"), "undisturbed", LOCAL)
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    return End.of(job)


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[..., ChaosJob]]:
    jobs: list[ChaosJob] = []

    def make(name: str, backend: tuple[str, ...] = LOCAL) -> ChaosJob:
        jobs.append(ChaosJob(tmp_path, name, backend))
        return jobs[-1]

    yield make
    ids = {job_id for job in jobs for job_id in job.ids()}
    nothing_is_left(ids)
    until(lambda: not ray_leftovers(), "nothing is left on Ray")


@pytest.fixture(scope="session")
def tally() -> dict[str, list[dict[str, Any]]]:
    """Backend → the injected failures of each of its runs."""
    return {"local": [], "ray": []}
