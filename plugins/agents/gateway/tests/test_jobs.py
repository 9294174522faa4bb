"""Jobs with unchanged programs: the tokens of the tool loop, and the same ones if the agent's rank is killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

HERE = Path(__file__).parent
BENCH = HERE.parents[1] / "base" / "tests" / "agent_bench.py"
FLOW = """from rolemesh import flow


@flow
def talk(job):
    job.trainer.train(job.agent.converse(job.tasks.next(), calls=[job.rollout, job.environment]))
"""


class Job:
    """A folder with a job of agents."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        site = folder / "site"
        info = site / "agent_bench-0.1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: agent-bench\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text("[rolemesh.environments]\nsums = agent_bench:Sums\n")
        for module in (BENCH, HERE / "gateway_bench.py"):
            shutil.copy(module, site)
        (folder / "flow.py").write_text(FLOW)

    def run(self, harness: str, *args: str, **env: str) -> dict[str, Any]:
        """Run the job, and return its result."""
        target = {"target": "agent_bench:Model", "kwargs": {"count": str(self.folder)}}
        limits = {"turns": 8, "tokens": 1000, "turn_tokens": 200}
        agent = {"model": ".", "samples": 2, "template": "agent_bench:load_template", "limits": limits}
        trainer = {"target": "gateway_bench:Tokens", "inputs": {"rows": "broadcast"}}
        roles = {
            "tasks": {"use": "tasks", "options": {"groups": 2}},
            "rollout": {"use": "function", "options": target},
            "environment": {"use": "environment"},
            "agent": {"use": "agent", "options": {**agent, "harness": harness}},
            "trainer": {"use": "function", "options": trainer},
        }
        sandbox = env.pop("sandbox", None)
        program = {"command": ["{python}", str(HERE / "programs/tools.py"), env.pop("client", "")], "env": env}
        plugins: dict[str, Any] = {"environments": [{"use": "sums", "options": {"numbers": 4}}]}
        plugins["harnesses"] = [{"use": "program", "options": program}] if harness == "program" else []
        if sandbox is not None:
            program["sandbox"] = sandbox
            plugins["sandboxes"] = [{"use": sandbox}]
        job = {
            "name": harness,
            "flow": "flow.py:talk",
            "steps": 2,
            "roles": {name: {**role, "resources": {"cpu": 0.1}} for name, role in roles.items()},
            "plugins": plugins,
            "failover": [{"use": "process"}],
            "engine": {"options": {"stop_grace_s": 2, "snapshots": {"every": 1}}},
        }
        (self.folder / "job.yaml").write_text(yaml.safe_dump(job))
        path = os.pathsep.join([str(self.folder / "site"), *sys.path])
        environ = os.environ | {"PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "200"}
        command = [sys.executable, "-m", "rolemesh.cli", "run", "job.yaml", *args]
        done = subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads((self.folder / "runs" / harness / "result.json").read_text())

    def lines(self, harness: str) -> list[dict[str, Any]]:
        """Return the metrics, a line for each step."""
        return [
            json.loads(line) for line in (self.folder / "runs" / harness / "metrics.jsonl").read_text().splitlines()
        ]

    def sampled(self) -> Counter[str]:
        """Return how often the model sampled each turn since the last time."""
        files = list(self.folder.glob("model-*"))
        found = Counter(line for path in files for line in path.read_text().splitlines())
        for path in files:
            path.unlink()
        return found


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """The job's folder."""
    return Job(tmp_path)


@pytest.mark.slow
def test_programs_train_the_tokens_of_the_tool_loop_also_if_the_rank_of_the_agent_is_killed(job, tmp_path):
    loop = job.run("tools")["state_sha256"]["trainer"]
    turns = job.sampled()
    result = job.run("program", KILLED=str(tmp_path / "killed"))
    assert (tmp_path / "killed").exists()
    assert result["state_sha256"]["trainer"] == loop
    assert job.sampled() == turns
    assert sum(line.get("gateway_turns", 0) for line in job.lines("program")) == turns.total()
    assert not any("gateway_samples" in line for line in job.lines("program"))
    mine = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    assert not [line for line in mine if str(HERE / "programs/tools.py") in line]


@pytest.mark.soak
@pytest.mark.parametrize("about", [{}, {"sandbox": "guarded"}], ids=["alone", "sandbox"])
def test_the_client_of_openai_trains_the_same_tokens_under_kills(job, about):
    loop = job.run("tools")["state_sha256"]["trainer"]
    result = job.run("program", "--chaos", "kills=4,seed=3", client="openai", **about)
    assert result["state_sha256"]["trainer"] == loop
    mine = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    assert not [line for line in mine if str(HERE / "programs/tools.py") in line]


@pytest.mark.soak
@pytest.mark.parametrize("sleep", [0.0, 0.01, 0.05, 0.2])
def test_a_client_that_loses_answers_trains_the_same_tokens_if_the_rank_of_the_agent_is_killed(job, tmp_path, sleep):
    """The new life answers from its log at once, so the client loses other answers than in the life before."""
    slow = f"roles.rollout.options.kwargs.sleep={sleep}"
    loop = job.run("tools")["state_sha256"]["trainer"]
    turns = job.sampled()
    result = job.run("program", slow, client="impatient", KILLED=str(tmp_path / "killed"))
    assert (tmp_path / "killed").exists()
    assert result["state_sha256"]["trainer"] == loop
    assert turns.total() <= job.sampled().total() <= turns.total() + 4, "what was sampled when the rank died at most"
