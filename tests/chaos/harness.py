"""The chaos job through the command line, and what must hold of its end whatever was killed on the way."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.e2e.harness import Job

from rolemesh_checkpoint import disk

JOB_FILE = Path(__file__).parent / "post_training" / "job.yaml"
STEPS = 24
SHARDS = list(range(4 * STEPS))
TIMES = ("time", "roles", "tokens_per_s", "tflops_per_s", "mfu")
"""Fields of a metrics line, and of its operators, that differ between two runs of one job."""


class ChaosJob(Job):
    """The job of `post_training`, with its runs in a folder of the test's."""

    def command(self, *args: str) -> list[str]:
        if args[:2] == ("run", "job.yaml"):
            args = ("run", str(JOB_FILE), f"name={self.name}", *args[2:])
        return super().command(*args)

    def rehearse(self, spec: str, *args: str) -> subprocess.CompletedProcess[str]:
        return self.run(*args, "--chaos", spec)


@dataclass
class End:
    """The outcome of a run."""

    sha256: dict[str, str | None]
    lines: list[dict[str, Any]]

    @classmethod
    def of(cls, job: Job) -> End:
        return cls(job.result()["state_sha256"], job.metrics())


def timeless(line: dict[str, Any]) -> dict[str, Any]:
    own = {op: timeless(values) for op, values in line.get("operators", {}).items()}
    found = {name: value for name, value in line.items() if name not in TIMES}
    return found | ({"operators": own} if own else {})


def as_if_nothing_had_happened(job: Job, undisturbed: End) -> None:
    """Raises `AssertionError` unless weights, shards, metrics and journal are those of a run without failures."""
    assert job.result()["status"] == "done"
    assert job.result()["state_sha256"] == undisturbed.sha256
    assert [line["step"] for line in job.metrics()] == list(range(STEPS))
    for line, other in zip(job.metrics(), undisturbed.lines, strict=True):
        assert timeless(line) == timeless(other)
    assert sorted(shard for line in job.metrics() for shard in line["records"]["shards"]) == SHARDS
    assert sorted(scored(job)) == SHARDS
    events = job.events()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert job.result()["committed_steps"] == STEPS
    assert [e["epoch"] for e in events] == sorted(e["epoch"] for e in events)


def scored(job: Job) -> list[int]:
    """Every shard that a reward rank has scored, as its last persisted snapshot has it."""
    found, damaged = disk.newest_intact(job.run_dir)
    assert damaged == []
    assert found is not None
    assert found.manifest is not None
    assert found.step == STEPS - 1
    return [int(shard) for state in disk.states(found.path, "reward") for shard in np.asarray(state["scored"])]


def injected_while(job: Job) -> dict[str, int]:
    """How many failures were injected: by target's kind, and while the job was being brought back."""
    found: dict[str, int] = {"rank": 0, "agent": 0, "master": 0, "recovering": 0}
    agents = {event["data"]["agent"] for event in job.events() if event["kind"] == "agent_started"}
    recovering = False
    for event in job.events():
        if event["kind"] in ("failure", "recovery_planned"):
            recovering = True
        elif event["kind"] == "recovered":
            recovering = False
        elif event["kind"] == "injected":
            target = event["data"]["target"]
            found["master" if target == "master" else "agent" if target in agents else "rank"] += 1
            found["recovering"] += recovering
    return found


def told(job: Job) -> str:
    """The trail of a run, for a person who looks at a failed test."""
    words = ("injected", "failure", "recover", "agent_", "ended")
    return "\n".join(json.dumps(e)[:400] for e in job.events() if any(word in e["kind"] for word in words))
