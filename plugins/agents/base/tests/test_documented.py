"""The examples of the pages "Agents" and "Write a harness" run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "agents.md").read_text()


def block(language: str, number: int = 0) -> str:
    """Return a block of code of the page."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)[number]


def test_the_first_agent_of_the_page_runs_with_a_model_of_rules(agent_job: Callable[..., Any]) -> None:
    job = agent_job("documented")
    (job.folder / "sums.py").write_text(block("python"))
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


def test_the_harness_with_several_samples_lets_the_model_check_its_answer(agent_job: Callable[..., Any]) -> None:
    job = agent_job("unknown", steps=1)
    site, page = job.folder / "site", (DOCS / "write-a-harness.md").read_text()
    (site / "checked.py").write_text(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[1])
    with (site / "agent_bench-0.1.0.dist-info" / "entry_points.txt").open("a") as points:
        points.write("checked = checked:Checked\n")
    job.set(roles__agent__options__harness="checked", plugins__harnesses=[{"use": "checked"}])
    done = job.run("--engine", "inline")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {(row["turns"], row["ended"]) for row in job.rows()} == {(3, "finished")}
