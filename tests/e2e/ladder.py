"""Jobs with a failover ladder: what their journal says of recoveries, and what their end must be."""

from __future__ import annotations

import subprocess
from typing import Any

from tests.e2e.harness import Job
from tests.waiting import until

from rolemesh.api.observer import JobStatus

LADDER = """
failover:
  - {use: process, options: {max_attempts: 20}}
  - {use: job, options: {max_attempts: 5}}
engine: {options: {snapshots: {every: 1, persist_every: 5}, hang: {after_s: 60}}}
"""
STEPS = 150
SLOW = (f"steps={STEPS}", "roles.work.options.kwargs.sleep=0.02")
ENDLESS = ("steps=100000", "metrics.every=1", "roles.work.options.kwargs.sleep=0.02")


def total(steps: int) -> float:
    return float(sum(x * x for x in range(6 * steps)))


def pids(status: JobStatus) -> dict[str, int]:
    return {str(r.ref): r.pid for r in status.ranks}


def of_kind(job: Job, *kinds: str) -> list[dict[str, Any]]:
    return [event for event in job.events() if event["kind"] in kinds]


def recovered(job: Job, times: int = 1) -> JobStatus:
    """Wait until as many recoveries have ended well."""
    until(lambda: len(of_kind(job, "recovered")) >= times, f"{times} recoveries")
    return job.running()


def launched(job: Job) -> list[list[str]]:
    return [
        sorted(f"{r['role']}/{r['rank']}" for r in event["data"]["ranks"])
        for event in of_kind(job, "recovery_launched")
    ]


def ended_well(job: Job, process: subprocess.Popen[str], steps: int = STEPS) -> str:
    """Wait for the end, which is that of a job in which nothing has failed; returns the console."""
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert [line["step"] for line in job.metrics()] == list(range(steps))
    assert job.metrics()[-1]["reward"] == total(steps)
    assert job.result()["committed_steps"] == steps
    return out
