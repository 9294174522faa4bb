"""Jobs with agents: conversations end as they should, whatever the model, the tools and the processes do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

MISTAKES = {
    "empty": (1, "finished", ""),
    "nothing": (1, "finished", ""),
    "long": (1, "truncated", ""),
    "garbage": (2, "finished", "no valid call of a tool"),
    "unknown": (2, "finished", "there is no tool 'fly'"),
    "wrong": (2, "finished", "wrong arguments for add: a:"),
    "slow": (2, "finished", "the tool hang did not answer within 0.5 s"),
    "nap": (2, "finished", "the tool nap did not answer within 0.5 s"),
    "flood": (2, "finished", "more bytes are left out"),
    "fork": (2, "finished", "forked"),
    "pay": (2, "finished", "paid"),
    "forever": (6, "truncated", "3"),
}
"""The rules of a model, and how a conversation with it ends: turns, end, and a part of the environment's words."""


def total(job: Any, name: str) -> float:
    """Return the sum of a counted metric over all steps."""
    return sum(line.get(name, 0) for line in job.lines())


def alive(pid: int) -> bool:
    """Return True if the process runs; a zombie does not."""
    with suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.soak
def test_kills_change_no_conversation(agent_job: Callable[..., Any]) -> None:
    job = agent_job(steps=4, numbers=4, sleep=0.02)
    job.set(roles__agent__world_size=2, roles__environment__world_size=2, engine__options__snapshots={"every": 1})
    done = job.run("--chaos", "kills=6,seed=2", "--chaos-compare")
    assert "exactly as the undisturbed one" in done.stdout, done.stderr + done.stdout
    assert done.returncode == 0
    assert total(job, "conversations") == 48
    assert total(job, "conversations_failed") == 0


@pytest.mark.parametrize("at", [7, *(pytest.param(at, marks=pytest.mark.soak) for at in (1, 12, 20, 36))])
def test_a_killed_agent_repeats_nothing(agent_job: Callable[..., Any], at: int) -> None:
    job = agent_job(steps=1)
    job.set(plugins__harnesses=[{"use": "killer", "options": {"at": at}}])
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert restarted(job) == {"agent/0"}
    turns = job.noted("model-*")
    assert len(turns) == 3 * 12
    assert len(set(turns)) == len(turns), "no turn was sampled twice"
    actions = Counter(line for line in job.noted("environment-*") if line.startswith("add"))
    assert sum(actions.values()) == 2 * 12, "no action was done twice"
    assert total(job, "episodes_restored") == 0
    assert job.result()["state_sha256"] == undisturbed(job)


@pytest.mark.parametrize("states", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_killed_environment_restores_its_episodes(agent_job: Callable[..., Any], states: bool) -> None:
    job = agent_job(steps=1, broken="add", states=states)
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert restarted(job) == {"environment/0"}
    turns = job.noted("model-*")
    assert len(turns) == len(set(turns)) == 3 * 12
    assert 0 < total(job, "episodes_restored") <= 12
    assert any(line.startswith("restore") for line in job.noted("environment-*")) == states
    assert job.result()["state_sha256"] == undisturbed(job)


def test_the_episodes_of_lost_sandboxes_are_restored(agent_job: Callable[..., Any]) -> None:
    job = agent_job(steps=1, broken="sandbox")
    job.set(roles__environment__options__sandbox="guarded", plugins__sandboxes=[{"use": "guarded"}])
    job.set(roles__agent__options__limits__call_s=60.0)
    done = job.run("--engine", "inline")
    assert done.returncode == 0, done.stdout + done.stderr
    turns = job.noted("model-*")
    assert len(turns) == len(set(turns)) == 3 * 12, "no turn was sampled twice"
    assert 0 < total(job, "episodes_restored") <= 12
    assert total(job, "attempts_failed") == 0
    assert job.result()["state_sha256"] == undisturbed(job)


@pytest.mark.soak
def test_conversations_wait_while_the_machine_refuses_what_they_need(agent_job: Callable[..., Any]) -> None:
    job = agent_job(steps=1, broken="short")
    done = job.run("--engine", "inline")
    assert done.returncode == 0, done.stdout + done.stderr
    said = "conversations wait for role environment, rank 0: the machine refuses what an episode needs ([Errno 28]"
    assert said in done.stdout + done.stderr
    assert total(job, "episodes_restored") == 1
    assert total(job, "attempts_failed") == 0
    assert job.result()["state_sha256"] == undisturbed(job)


def restarted(job: Any) -> set[str]:
    """Return the ranks that were restarted in the last run."""
    return {rank for each in job.result()["recoveries"] for rank in each["restarted"]}


def undisturbed(job: Any) -> dict[str, str]:
    """Return the hashes of the same job in one process, in which nothing dies."""
    job.job["plugins"]["environments"][0]["options"]["broken"] = ""
    job.set(roles__agent__options__harness="tools", plugins__harnesses=[])
    done = job.run("--engine", "inline")
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(job.result()["state_sha256"])


def test_mistakes_of_the_model_are_part_of_its_conversation(agent_job: Callable[..., Any]) -> None:
    job = agent_job("told", steps=1, rules=list(MISTAKES), tasks=len(MISTAKES))
    job.set(roles__tasks__options__groups=len(MISTAKES))
    job.set(roles__agent__options__samples=1, roles__agent__options__limits__call_s=0.5)
    job.set(roles__agent__options__limits__tokens=4000, roles__environment__options__content_kb=1)
    done = job.run("--engine", "inline")
    assert done.returncode == 0, done.stderr + done.stdout
    rows = {list(MISTAKES)[row["index"]]: row for row in job.rows()}
    assert rows.keys() == MISTAKES.keys()
    for rule, (turns, ended, observed) in MISTAKES.items():
        row = rows[rule]
        assert (row["turns"], row["ended"], row["reward"]) == (turns, ended, 0), rule
        assert observed in row["text"], rule
        assert len(row["text"]) < 4000
    assert total(job, "conversations_failed") == 0
    assert total(job, "tool_timeouts") == 2
    forked = [int(line.split()[1]) for line in job.noted("environment-*") if line.startswith("forked")]
    assert forked
    assert not any(map(alive, forked))


def test_only_sampled_tokens_are_marked_as_such(agent_job: Callable[..., Any]) -> None:
    job = agent_job(steps=1)
    assert job.run("--engine", "inline").returncode == 0
    for row in job.rows():
        text, mask = row["text"], row["mask"]
        assert mask.count("1") == sum(len(part) + 1 for part in sampled(text))
        assert "<tool>" in text
        assert row["turns"] == 3


def sampled(text: str) -> list[str]:
    """Return the parts of a row's text that the model has sampled."""
    return [part.partition("<tool>")[0] for part in text.split("<assistant>")]


def test_a_failed_group_is_replaced_by_another_task(agent_job: Callable[..., Any]) -> None:
    job = agent_job(steps=2, broken="reset")
    done = job.run("--engine", "inline")
    assert done.returncode == 0, done.stderr + done.stdout
    rows = job.rows()
    assert len(rows) == 24
    assert all(row["index"] % 2 == 0 for row in rows), "tasks with odd numbers fail"
    assert [row["group"] for row in rows] == [group for group in range(6) for _ in range(4)]
    refilled = total(job, "groups_refilled")
    assert refilled > 0
    assert total(job, "conversations_failed") == 4 * refilled
    assert total(job, "attempts_failed") == 3 * 4 * refilled
    reasons = [reason for line in job.lines() for name, reason in line["records"].items() if name.startswith("failed")]
    assert reasons
    assert all("no room for another episode" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("rule", "broken", "reason"),
    [
        ("add", "reward", "Reward.value is nan, not a finite number"),
        ("hang", "", "the episode hangs: SumEpisode.call has not returned within 0.5 s; it is in hang ("),
        ("bug", "", "the episode raised KeyError: 'no such thing'"),
        ("exit", "", "the episode raised RuntimeError: it raised SystemExit(3)"),
    ],
)
def test_a_job_fails_with_the_reason_when_no_task_is_left(
    agent_job: Callable[..., Any], rule: str, broken: str, reason: str
) -> None:
    job = agent_job(rule, steps=1, broken=broken)
    job.set(roles__agent__options__refills=1, roles__agent__options__retries=0)
    job.set(roles__agent__options__limits__call_s=0.5)
    done = job.run("--engine", "inline")
    assert done.returncode == 1
    assert f"2 tasks of group 0 have failed in a row; the last: {reason}" in done.stdout + done.stderr
    assert not (job.folder / "rows.jsonl").exists(), "no row is made up"


@pytest.mark.soak
def test_a_tool_that_ends_its_process_fails_the_conversation(agent_job: Callable[..., Any]) -> None:
    job = agent_job("told", steps=1, rules=["die", "add"], tasks=2)
    job.set(roles__tasks__options__groups=1, failover=[{"use": "process", "options": {"max_attempts": 100}}])
    job.set(roles__agent__options__samples=1, roles__agent__options__retries=0)
    job.set(roles__agent__options__refills=20)
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert total(job, "conversations_failed") == total(job, "groups_refilled")


def test_a_call_that_must_not_be_repeated_is_not_repeated(agent_job: Callable[..., Any]) -> None:
    job = agent_job("told", steps=1, rules=["pay", "add"], tasks=2, broken="pay")
    job.set(roles__tasks__options__groups=2, roles__agent__options__samples=1)
    job.set(roles__agent__options__retries=3, roles__agent__options__refills=20)
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    paid = [line for line in job.noted("environment-*") if line.startswith("pay")]
    assert len(paid) == 1 + total(job, "conversations_failed") - 1
    assert {row["index"] for row in job.rows()} == {1}


def test_a_prompt_that_leaves_no_room_is_a_failure(agent_job: Callable[..., Any]) -> None:
    job = agent_job(steps=1)
    job.set(
        roles__agent__options__refills=0, roles__agent__options__retries=0, roles__agent__options__limits__tokens=50
    )
    done = job.run("--engine", "inline")
    assert done.returncode == 1
    assert "tokens, and limits.tokens is 50" in done.stdout + done.stderr
