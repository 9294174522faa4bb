"""Conversations under many kills: ranks of every role, agents, zygotes, sandboxes and the master.

To see a seed again: ``-m soak -k 'many_kills and not ray and 3'``.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KILLS = 20
STEPS = 10
CONVERSATIONS = 12 * STEPS
TARGETS = "rank,agent,zygote,child:environment/*,master"
PATIENT = [{"use": "process", "options": {"max_attempts": 1000}}, {"use": "job"}]
"""The ladder. Its first level has a larger budget than the default, which 20 kills would use up."""


FOREIGN: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "openenv": ("openenv==0.10.0", "echoing.py", "sums", {"environment": "echoing:Sums", "action": "echoing:Add"}),
    "verifiers": ("verifiers==0.4.0", "trying_tools.py", "counting", {"taskset": "trying_tools", "eval_size": 2}),
}
"""Environments of other projects: their package, a file of their plugin's tests, the model's rule, and options."""


def chaotic(agent_job: Callable[..., Any]) -> Any:
    """Return a job of short steps whose tools run in sandboxes."""
    job = agent_job(steps=STEPS, numbers=4, sleep=0.02)
    job.job["roles"]["rollout"]["options"]["kwargs"]["sleep"] = 0.05  # so kills come while turns are sampled
    for role in ("agent", "environment", "rollout"):
        job.set(**{f"roles__{role}__world_size": 2})
    job.set(roles__agent__options__limits__call_s=60.0)  # how late a tool is differs from run to run
    job.set(roles__environment__options__sandbox="guarded", plugins__sandboxes=[{"use": "guarded"}])
    return job.set(failover=PATIENT, engine__options={"lease_s": 20, "stop_grace_s": 2, "snapshots": {"every": 1}})


def rehearsed(job: Any, seed: int, *args: str) -> dict[str, float]:
    """Play one seed. Return how many calls ran by role, as multiples of the undisturbed run."""
    spec = f"kills={KILLS},seed={seed},targets={TARGETS}"
    done = job.run("--chaos", spec, "--chaos-compare", *args)
    said = done.stdout + done.stderr
    print(*re.findall(r"(?:rehearsal: .*|calls of .*|  goodput .*)", said), sep="\n")
    assert done.returncode == 0, said
    assert "exactly as the undisturbed one" in done.stdout
    assert f"rehearsal: {KILLS} failures injected" in done.stdout
    lines = job.lines()
    assert sum(line["conversations"] for line in lines) == CONVERSATIONS
    assert sum(line.get("conversations_failed", 0) for line in lines) == 0
    assert sum(line.get("attempts_failed", 0) for line in lines) == 0
    assert [(line["step"], line["reward"]) for line in lines] == rewards(job)
    return {role: float(ratio) for role, ratio in re.findall(r"calls of (\w+) that ran: \d+, ([\d.]+) ×", said)}


def rewards(job: Any) -> list[tuple[int, float]]:
    """Return step and mean reward of the undisturbed run."""
    return [(line["step"], line["reward"]) for line in job.lines("talks-undisturbed")]


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_conversations_wait_for_disks_stores_and_clocks(agent_job: Callable[..., Any], seed: int) -> None:
    job = chaotic(agent_job)
    job.job["plugins"]["environments"][0]["options"]["count"] = (
        ""  # these notes of the test could not be written either
    )
    for role in ("rollout", "trainer"):
        job.job["roles"][role]["options"]["kwargs"] |= {"count": ""} if role == "rollout" else {"out": ""}
    targets = "full:agent/*,full:environment/*,full,stall,clock,disk"
    done = job.run("--chaos", f"kills=8,seed={seed},targets={targets}", "--chaos-compare")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(line["conversations"] for line in job.lines()) == CONVERSATIONS
    assert sum(line.get("attempts_failed", 0) for line in job.lines()) == 0


@pytest.mark.soak
def test_a_return_to_disk_names_the_calls_that_may_be_made_again(agent_job: Callable[..., Any]) -> None:
    job = agent_job(steps=2, broken="add")
    job.set(failover=[{"use": "job"}])
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    said = "steps are run again; calls that must not be repeated may be made again: environment.call_once"
    assert said in (done.stdout + done.stderr).replace("\n", " ")


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_kills_change_no_conversation(agent_job: Callable[..., Any], seed: int) -> None:
    job = chaotic(agent_job)
    assert rehearsed(job, seed, "--backend", "local")["rollout"] <= 1.1


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("seed", range(10, 20))
def test_many_kills_change_no_conversation_on_ray(agent_job: Callable[..., Any], ray_address: str, seed: int) -> None:
    job = chaotic(agent_job)
    assert rehearsed(job, seed, "--address", ray_address)["rollout"] <= 1.1


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("use", FOREIGN)
def test_kills_of_another_projects_environment_change_no_conversation(agent_job: Callable[..., Any], use: str) -> None:
    package, module, rule, options = FOREIGN[use]
    job = agent_job(rule, steps=4)
    shutil.copy(Path(__file__).parents[2] / use / "tests" / module, job.folder)
    # The servers of verifiers' tools are processes that import the module.
    apart = {"pip": [package], "env_vars": {"PYTHONPATH": str(job.folder)}}
    for role in ("tasks", "environment"):
        job.job["roles"][role]["runtime_env"] = apart
    job.job["roles"]["agent"]["options"]["samples"] = 2
    for role in ("agent", "environment"):
        job.job["roles"][role]["world_size"] = 2
    job.job["roles"]["rollout"]["options"]["kwargs"]["sleep"] = 0.1  # so kills come while turns are sampled
    job.set(plugins__environments=[{"use": use, "options": options}], failover=PATIENT)
    job.set(roles__agent__options__limits__call_s=120.0)  # each episode of verifiers starts a server
    chaos = "kills=5,seed=1,targets=environment/*"
    done = job.run("--backend", "local", "--chaos", chaos, "--chaos-compare")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exactly as the undisturbed one" in done.stdout
    assert "rehearsal: 5 failures injected" in done.stdout
    assert sum(line["conversations"] for line in job.lines()) == 6 * 4
    assert sum(line.get("attempts_failed", 0) for line in job.lines()) == 0
