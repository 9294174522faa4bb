"""A job runs among what interrupted installations left behind: all of its processes use the intact metadata."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.harness import Job


def test_a_job_runs_with_the_intact_metadata_in_all_of_its_processes(
    make_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rolemesh", "rolemesh_durable", "rolemesh_local", "rolemesh_console"):
        (tmp_path / f"left/{name}-0.0.1.dist-info").mkdir(parents=True)
        (tmp_path / f"left/~{name[1:]}-0.0.2.dist-info").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "left"))
    job = make_job()
    done = job.run("steps=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.result()["status"] == "done"
