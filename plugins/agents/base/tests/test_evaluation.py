"""Evaluation of agents: conversations that fail, and roles of its own beside training."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any


def test_a_failed_held_out_conversation_counts_and_is_no_reward_of_0(agent_job: Callable[..., Any]) -> None:
    job = agent_job(steps=1, broken="reset")
    job.set(flow="flow.py:judge")
    del job.job["roles"]["trainer"]
    done = job.run("--engine", "inline")
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = job.lines()
    assert line["eval_conversations_failed"] == line["eval_conversations"] == 4, (
        "of 8 tasks, those with odd numbers fail"
    )
    assert line["eval_turns"] == 3, "a failed conversation would have none"
    assert line["eval_reward"] == line["eval_success"]
    assert "conversations_failed" not in line
    assert "; eval_* are means over the others" in done.stdout + done.stderr


def test_training_does_not_wait_for_an_evaluation_on_roles_of_its_own(agent_job: Callable[..., Any]) -> None:
    job = agent_job(steps=20)
    roles, marker = job.job["roles"], str(job.folder / "trained")
    roles["examiner"], roles["proctor"] = deepcopy(roles["agent"]), deepcopy(roles["rollout"])
    roles["examiner"]["options"]["rollout"] = "proctor"
    roles["proctor"]["options"]["kwargs"]["wait_for"] = marker
    roles["trainer"]["options"]["kwargs"] |= {"mark": marker, "mark_at": 12}
    job.set(flow="flow.py:beside")
    done = job.run("--backend", "local")  # the evaluation of step 0 ends after the training of step 12
    assert done.returncode == 0, done.stdout + done.stderr
    lines = job.lines()
    assert [line["step"] for line in lines] == list(range(20))
    assert lines[0]["eval_conversations"] == 8
    assert job.result()["status"] == "done"


def test_a_step_of_the_conversations_that_are_finished_first_trains_each_once(agent_job: Callable[..., Any]) -> None:
    job = agent_job(steps=6)
    job.set(flow="flow.py:first", roles__agent__world_size=2)
    done = job.run("--backend", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = job.rows()
    assert sorted(row["group"] for row in rows) == [group for group in range(18) for _ in range(4)]
    trained = [row["group"] // 3 for row in rows]
    assert all(step - 2 <= of <= step + 2 for step, of in zip((at // 12 for at in range(72)), trained, strict=True))
