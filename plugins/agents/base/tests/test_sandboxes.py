"""Jobs with sandboxes: one for each episode, and those of the workload `sandbox`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

FLOW = """from rolemesh import flow


@flow
def talk(job):
    tasks = job.tasks.next()
    job.trainer.train(job.agent.converse(tasks, calls=[job.rollout, job.environment]))
    job.user.work(tasks, calls=[job.sandbox])
"""
EXPECTED = {
    "cells": r"code 0, ended '', cut 0: 42\n",
    "command": r"code 0, ended '', cut 0: hello\n",
    "forks": r"code (None, ended 'processes'.*|0, ended '', cut 0: made [0-7]\n)",
    "prints": r"code \S+, ended '', cut 29\d\d\d\d\d: .*y.*",
}
"""The answers of a sandbox of 8 processes and 64 kB of output, as patterns."""


def test_cells_and_commands_run_within_limits_in_an_episode_and_for_an_operator(agent_job: Callable[..., Any]) -> None:
    job = agent_job("told", steps=1)
    (job.folder / "flow.py").write_text(FLOW)
    boxes = {"sandbox": "guarded", "limits": {"seconds": 20, "processes": 8}}
    out = job.folder / "work.json"
    user = {"target": "agent_bench:SandboxUser", "inputs": {"tasks": "broadcast"}, "kwargs": {"out": str(out)}}
    job.set(
        plugins={"environments": [{"use": "agent_bench:Shells"}], "sandboxes": [{"use": "guarded"}]},
        roles__tasks__options={"groups": 4},
        roles__environment__options=boxes,
        roles__agent__options__samples=1,
        roles__agent__options__part=None,
        roles__agent__options__limits={"turns": 6, "tokens": 2000, "turn_tokens": 600, "call_s": 40},
        roles__sandbox={"use": "sandbox", "resources": {"cpu": 0.1}, "options": boxes},
        roles__user={"use": "function", "resources": {"cpu": 0.1}, "options": user},
    )
    done = job.run("--backend", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {list(EXPECTED)[row["index"]]: row["messages"] for row in job.rows()}
    of_model = {rule: [m["content"] for m in messages if m["role"] == "tool"][-1] for rule, messages in rows.items()}
    for found in (of_model, json.loads(out.read_text())):
        assert found.keys() == EXPECTED.keys()
        fits = {rule: re.fullmatch(shown, found[rule], re.DOTALL) for rule, shown in EXPECTED.items()}
        assert all(fits.values()), found
