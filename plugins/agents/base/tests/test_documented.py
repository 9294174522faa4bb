"""The examples of the pages "Agents" and "Write a harness" run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "agents.md").read_text()
STUMBLES = """

class Stumbles(Checked):
    seen = set()

    async def run(self, talk):
        if talk.seed not in self.seen:
            self.seen.add(talk.seed)
            await talk.sample()
            raise ValueError("the first attempt fails after a turn")
        await super().run(talk)
"""


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


def test_each_sampled_token_of_the_harness_with_several_samples_is_trained_or_counted(
    agent_job: Callable[..., Any],
) -> None:
    job = agent_job("unknown", steps=1)
    site, page = job.folder / "site", (DOCS / "write-a-harness.md").read_text()
    (site / "checked.py").write_text(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[1] + STUMBLES)
    with (site / "agent_bench-0.1.0.dist-info" / "entry_points.txt").open("a") as points:
        points.write("checked = checked:Stumbles\n")
    job.set(roles__agent__options__harness="checked", plugins__harnesses=[{"use": "checked"}])
    done = job.run("--engine", "inline")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {(row["turns"], row["ended"]) for row in job.rows()} == {(3, "finished")}
    (line,) = job.lines()
    trained = sum(row["mask"].count("1") for row in job.rows())
    assert line["sampled_tokens"] == trained + line["tokens_in_others"]
    assert line["tokens_left_out"] > 0 < line["tokens_in_others"]
    said = " ".join((done.stdout + done.stderr).split())
    assert "only job.trainer.train(job.agent.samples(rows)) in the flow trains these" in said
    assert f"{line['tokens_left_out'] // 3:.0f} sampled tokens are not trained" in said, "those of one of three groups"
