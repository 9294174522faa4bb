"""The environment and the job of the page "Agents" run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

PAGE = (Path(__file__).parents[4] / "docs" / "agents.md").read_text()


def block(language: str, number: int = 0) -> str:
    """Return a block of code of the page."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)[number]


def test_the_first_agent_of_the_page_runs_with_a_model_of_rules(agent_job: Callable[..., Any]) -> None:
    job = agent_job("documented")
    (job.folder / "site" / "sums.py").write_text(block("python"))
    points = job.folder / "site" / "agent_bench-0.1.0.dist-info" / "entry_points.txt"
    points.write_text("[rolemesh.environments]\nsums = sums:Sums\n")
    (job.folder / "flow.py").write_text(block("python", 1).replace("    job.rollout.load_weights", "    # "))
    documented = yaml.safe_load(block("yaml"))
    ours = job.job["roles"]
    documented["roles"] |= {"rollout": ours["rollout"], "trainer": ours["trainer"]}
    documented["roles"]["agent"]["options"] |= {"model": ".", "template": "agent_bench:load_template"}
    job.job = {**documented, "name": "talks", "steps": 1}
    done = job.run("--engine", "inline")
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = job.lines()
    assert (line["reward"], line["success"], line["turns"]) == (1, 1, 3)
