"""Lines of metrics of a quick job cover several steps, and count each step once, whatever dies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.e2e.harness import Job
from tests.e2e.ladder import of_kind, total
from tests.waiting import until

from rolemesh_durable.control.client import ControlClient
from rolemesh_durable.extensions.rehearsal.requests import InjectFault

STEPS = 12_000
LADDER = """
failover: [{use: process, options: {max_attempts: 20}}]
engine: {options: {hang: {after_s: 60}}}
"""


@pytest.mark.soak
def test_steps_of_a_quick_job_share_lines_and_count_once_whatever_dies(make_job: Callable[..., Job]) -> None:
    job = make_job(extra=LADDER)
    process = job.start(f"steps={STEPS}")
    job.running()
    until(lambda: of_kind(job, "lines_cut"), "lines get longer")
    with ControlClient(job.run_dir) as client:
        client.ask(InjectFault("kill", "work/0"))
    until(lambda: of_kind(job, "recovered"), "the rank is back")
    job.kill_process("master")
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert of_kind(job, "master_recovered")
    lines = job.metrics()
    covered = [step for line in lines for step in range(line["step"] - line["steps"] + 1, line["step"] + 1)]
    assert covered == list(range(STEPS))
    assert [line["steps"] for line in lines[:1024]] == [1] * 1024
    assert len(lines) < STEPS / 2
    assert {line["rows"] for line in lines} == {6.0}, "per step, however many steps a line covers"
    assert job.result()["committed_steps"] == STEPS
    assert 0.0 < lines[-1]["reward"] <= total(STEPS)
