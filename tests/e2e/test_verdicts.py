"""Notes of a workload to the user while its job runs, and a job that its workload declares failed."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from tests.e2e.harness import Job, nothing_is_left

ROLES = """
from rolemesh import Workload, operator


class Judge(Workload):
    deterministic = True

    def setup(self, ctx):
        self.ctx = ctx
        self.total = 0

    @operator()
    def add(self) -> None:
        self.total += 1
        if self.ctx.step == 1:
            self.ctx.warn("nothing came")
            self.ctx.warn("nothing went")

    def snapshot(self):
        return {"total": self.total}

    def restore(self, state):
        self.total = state["total"]

    def verdict(self):
        return f"{self.total} is not enough" if self.ctx.rank == 1 else ""
"""


@pytest.mark.parametrize("engine", [("--backend", "local"), ("--engine=inline",)], ids=str)
def test_a_warning_is_shown_and_a_verdict_fails_the_job_after_its_last_step(tmp_path: Path, engine: tuple[str, ...]):
    (tmp_path / "roles.py").write_text(ROLES)
    (tmp_path / "flow.py").write_text("import rolemesh\n\n\n@rolemesh.flow\ndef flow(job):\n    job.judge.add()\n")
    (tmp_path / "job.yaml").write_text(
        textwrap.dedent("""\
            name: verdict
            flow: flow.py:flow
            steps: 3
            failover: [{use: process}, {use: job}]
            roles:
              judge: {use: "roles.py:Judge", world_size: 2, resources: {cpu: 0}}
            """)
    )
    job = Job(tmp_path, "verdict", engine)
    done = job.run()
    result = json.loads((job.run_dir / "result.json").read_text())
    nothing_is_left(job.ids())
    assert done.returncode == 1
    assert (result["status"], result["committed_steps"], result["exit_code"]) == ("failed", 3, 1)
    assert result["message"] == "role judge, rank 1: 3 is not enough"
    assert result["message"] in done.stderr
    assert result["state_sha256"]["judge"], "the state after the last step counts all the same"
    for rank in (0, 1):
        for what in ("nothing came", "nothing went"):
            assert f"warning: judge/{rank}, step 1: {what}" in done.stdout
