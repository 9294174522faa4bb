"""A job folder with agents, in which a test replaces what it is about."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

FLOW = """from rolemesh import AtMost, flow


@flow
def talk(job):
    rows = job.agent.converse(job.tasks.next(), calls=[job.rollout, job.environment])
    job.trainer.train(rows)


@flow
def judge(job):
    job.agent.evaluate(job.tasks.held_out(), calls=[job.rollout, job.environment])


@flow
def beside(job):
    talk.function(job)
    job.examiner.evaluate(job.tasks.held_out(every=20, at=0), every=20, at=0, calls=[job.proctor, job.environment])


@flow
def first(job, most=2):
    rows = job.agent.converse(job.tasks.next(), calls=[job.rollout, job.environment])
    job.trainer.train(rows, lag=AtMost(most))
"""


@dataclass
class AgentJob:
    """A folder with a job of agents, and the command line around it."""

    folder: Path
    job: dict[str, Any]

    def set(self, **places: Any) -> AgentJob:
        """Set keys of the job file; ``roles__agent__options__retries=1`` is a nested one."""
        for place, value in places.items():
            *above, last = place.split("__")
            into = self.job
            for key in above:
                into = into.setdefault(key, {})
            into[last] = value
        return self

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run the job."""
        (self.folder / "job.yaml").write_text(yaml.safe_dump(self.job))
        path = os.pathsep.join([str(self.folder / "site"), *sys.path])
        environ = os.environ | {"PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "200"}
        command = [sys.executable, "-m", "rolemesh.cli", "run", "job.yaml", *args]
        return subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, text=True, check=False)

    def result(self) -> dict[str, Any]:
        """Return the last run's ``result.json``."""
        found: dict[str, Any] = json.loads((self.folder / "runs/talks/result.json").read_text())
        return found

    def lines(self, name: str = "talks") -> list[dict[str, Any]]:
        """Return the metrics of the last run with this name, a line for each step."""
        return [json.loads(line) for line in (self.folder / f"runs/{name}/metrics.jsonl").read_text().splitlines()]

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows that the trainer got, in all lives."""
        return [json.loads(line) for line in (self.folder / "rows.jsonl").read_text().splitlines()]

    def noted(self, pattern: str) -> list[str]:
        """Return the lines that environments or models have written to their files, of all processes."""
        return [line for path in sorted(self.folder.glob(pattern)) for line in path.read_text().splitlines()]


@pytest.fixture
def agent_job(tmp_path: Path) -> Callable[..., AgentJob]:
    """``agent_job(rule, **options of Sums)`` returns an `AgentJob` whose model follows this rule."""

    def make(rule: str = "add", steps: int = 2, **sums: Any) -> AgentJob:
        site = tmp_path / "site"
        info = site / "agent_bench-0.1.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: agent-bench\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text(
            "[rolemesh.environments]\nsums = agent_bench:Sums\n[rolemesh.harnesses]\nkiller = agent_bench:Killer\n"
        )
        shutil.copy(HERE / "agent_bench.py", site)
        (tmp_path / "flow.py").write_text(FLOW)
        small = {"cpu": 0.1}
        target = {"target": "agent_bench:Model", "kwargs": {"rule": rule, "count": str(tmp_path)}}
        limits = {"turns": 6, "tokens": 1000, "turn_tokens": 200, "call_s": 1.0}
        agent = {"model": ".", "samples": 4, "template": "agent_bench:load_template", "limits": limits}
        roles = {
            "tasks": {"use": "tasks", "options": {"groups": 3}},
            "rollout": {"use": "function", "options": target},
            "environment": {"use": "environment"},
            "agent": {"use": "agent", "options": agent},
            "trainer": {
                "use": "function",
                "options": {
                    "target": "agent_bench:Learner",
                    "inputs": {"rows": "broadcast"},
                    "kwargs": {"out": str(tmp_path / "rows.jsonl")},
                },
            },
        }
        job = {
            "name": "talks",
            "flow": "flow.py:talk",
            "steps": steps,
            "roles": {name: {**role, "resources": small} for name, role in roles.items()},
            "plugins": {"environments": [{"use": "sums", "options": {"count": str(tmp_path), **sums}}]},
            "failover": [{"use": "process"}],
            "engine": {"options": {"stop_grace_s": 2}},
        }
        return AgentJob(tmp_path, job)

    return make
