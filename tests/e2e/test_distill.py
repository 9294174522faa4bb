"""examples/distill on the real model: a teacher that dies is started again alone, and the student ends the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.harness import Job, nothing_is_left
from tests.e2e.ladder import launched, pids

EXAMPLE = Path(__file__).parents[2] / "examples" / "distill"


class Distill(Job):
    """The example, with its runs in a folder of the test's."""

    def command(self, *args: str) -> list[str]:
        return super().command(*args[:1], str(EXAMPLE / "job.yaml"), *args[2:])


@pytest.mark.scenario("rolemesh run examples/distill/job.yaml")
@pytest.mark.slow
@pytest.mark.soak
def test_the_student_learns_the_same_though_the_teacher_is_killed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(EXAMPLE / "prepare.py")], check=True, capture_output=True)
    jobs = [Distill(tmp_path / name, "distill", ("--backend", "local")) for name in ("straight", "killed")]
    for job in jobs:
        job.folder.mkdir()
    assert jobs[0].run("steps=6").returncode == 0
    process = jobs[1].start("steps=6", "engine.options.snapshots.persist_every=100")
    os.kill(pids(jobs[1].running(1))["teacher/0"], signal.SIGKILL)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert launched(jobs[1]) == [["teacher/0"]]
    assert jobs[1].result()["state_sha256"] == jobs[0].result()["state_sha256"]
    losses = [line["loss"] for line in jobs[1].metrics()]
    assert losses == [line["loss"] for line in jobs[0].metrics()]
    assert sum(losses[-3:]) / 3 < losses[0] * 0.9  # each step has other text, some of it harder
    nothing_is_left({job_id for job in jobs for job_id in job.ids()})
