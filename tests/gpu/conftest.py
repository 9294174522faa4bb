"""Jobs whose ranks have an NVIDIA GPU. Without one these tests are skipped.

``ROLEMESH_GPU_TESTS=cpu`` runs most of them on CPUs instead, which shows that the tests themselves work.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.conftest import make_job  # noqa: F401 - a fixture
from tests.e2e.harness import Job
from tests.gpu.jobs import write

from rolemesh.placement.nodes import this_machine

REHEARSED = os.environ.get("ROLEMESH_GPU_TESTS") == "cpu"
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    found = this_machine().nodes[0].gpu
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not found and (not REHEARSED or item.get_closest_marker("only_gpu")):
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU (/dev/nvidia0)"))


@pytest.fixture
def device() -> str:
    """``cuda``, or ``cpu`` in a rehearsal."""
    return "cpu" if REHEARSED else "cuda"


@pytest.fixture
def gpu_job(make_job: Callable[..., Job], device: str) -> Callable[..., Job]:  # noqa: F811
    """Makes a job of `tests.gpu.jobs`: a folder with its flow, roles and models."""

    def make(name: str) -> Job:
        return write(make_job(name), device)

    return make
