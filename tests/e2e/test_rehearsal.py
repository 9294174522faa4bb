"""Rehearsals: every requested failure hits a process at work, or the rehearsal reports that it did not."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import job_in
from tests.e2e.harness import Job, leftovers
from tests.waiting import until

HELLO = Path(__file__).resolve().parents[2] / "examples" / "hello" / "job.yaml"
LADDER = "failover=[{use: process},{use: job}]"


def rehearse(folder: Path, name: str, *args: str, job: Path = HELLO) -> tuple[Job, str]:
    """The job's rehearsal in `folder`, and what the command has said; it has ended with 0."""
    done = subprocess.run(
        [sys.executable, "-m", "rolemesh.cli", "run", str(job), "--backend", "local", *args],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = Job(folder, name, ())
    until(lambda: not leftovers(found.ids()), "nothing is left of the job")
    return found, done.stdout


def happened(job: Job) -> Counter[str]:
    """Kinds of events, and the kinds of faults that were injected."""
    events: list[dict[str, Any]] = job.events()
    return Counter([e["kind"] for e in events] + [e["data"]["kind"] for e in events if e["kind"] == "injected"])


@pytest.mark.soak
def test_failures_of_a_quick_job_that_commits_nothing_all_happen(tmp_path: Path) -> None:
    job, said = rehearse(
        tmp_path,
        "hello",
        "steps=3000",
        LADDER,
        "engine.options.snapshots.every=3000",
        "--chaos",
        "kills=3,seed=3,targets=rank",
        "--chaos-compare",
    )
    assert "rehearsal: 3 failures injected: " in said
    assert "ended exactly as the undisturbed one" in said
    seen = happened(job)
    assert seen["injected"] >= 3
    assert seen["failure"] >= 3


def test_a_rehearsal_reports_a_target_that_it_cannot_hit(tmp_path: Path) -> None:
    job = job_in(tmp_path / "ends", "ends", extra="failover: [{use: process}]\nsteps: 1000000\n")
    text = (job.folder / "job.yaml").read_text().replace("steps: 20\n", "")
    (job.folder / "job.yaml").write_text(text)
    process = job.start("--chaos", "kills=2,seed=1,targets=master")
    until(lambda: (job.run_dir / "events.jsonl").exists() and job.status(), "the job runs")
    job.cli("stop", "ends")
    assert process.stdout is not None
    said = process.stdout.read()
    assert process.wait() == 130, said
    assert "of 2 failures injected" in said
    process.stdout.close()
    until(lambda: not leftovers(job.ids()), "nothing is left of the job")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("child:sink/*", "no rank of it had a process of its own that could be killed"),
        ("agent:nobody", "there is no agent 'nobody'"),
        ("zygote:nobody", "there is no agent 'nobody'"),
    ],
)
def test_a_target_that_is_not_there_is_named_and_costs_seconds(tmp_path: Path, target: str, why: str) -> None:
    command = [sys.executable, "-m", "rolemesh.cli", "run", str(HELLO), "--backend", "local", "steps=200", LADDER]
    done = subprocess.run(
        [*command, "--chaos", f"kills=12,seed=1,targets={target},master"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "rehearsal: 6 of 12 failures injected: " in said
    assert f"not hit: {target}, 6 ×: {why}" in said


@pytest.mark.parametrize(
    "target", ["clock", *(pytest.param(target, marks=pytest.mark.soak) for target in ("zygote", "full", "stall"))]
)
def test_a_job_ends_as_undisturbed_whatever_befalls_its_processes(tmp_path: Path, target: str) -> None:
    made = job_in(tmp_path / "job", "squares", extra="failover: [{use: process}, {use: job}]\n")
    chaos = f"kills=3,seed=5,targets={target}"
    snapshots = "engine.options.snapshots={every: 1, persist_every: 20}"
    job, said = rehearse(
        made.folder,
        "squares",
        "steps=200",
        snapshots,
        "until.max_s=1800",  # less than a step of the clock, which does not count
        "--chaos",
        chaos,
        "--chaos-compare",
        job=made.folder / "job.yaml",
    )
    assert "rehearsal: 3 failures injected: " in said
    assert "ended exactly as the undisturbed one" in said
    steps = [line["step"] for line in job.metrics()]
    assert steps == list(range(200))
    assert happened(job)[target] >= 3
