"""An agent's death restarts no rank: its next incarnation adopts those that run, or its janitor ends them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest
from tests.e2e.harness import Job, nothing_is_left
from tests.e2e.ladder import LADDER, SLOW, STEPS, ended_well, launched, of_kind, pids, total
from tests.waiting import until

from rolemesh_processes.guard import shm_folder

Make = Callable[..., Job]
"""It is 0.3 s on a machine that has nothing else to do."""
STARTS_S = 15
"""Seconds that the start of an agent may take in the job whose supervisor starts none."""


def ups(job: Job) -> list[int]:
    return [event["data"]["pid"] for event in of_kind(job, "agent_up")]


def adopted(job: Job, times: int = 1) -> None:
    until(lambda: len(ups(job)) > times, f"{times} new agents")


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("ladder", [LADDER, pytest.param("", marks=pytest.mark.soak)], ids=["ladder", "no-ladder"])
def test_an_agents_death_restarts_no_rank_and_costs_no_recovery(make_job: Make, ladder: str) -> None:
    job = make_job(extra=ladder)
    process = job.start(*SLOW)
    status = job.running(10)
    os.kill(status.agents[0].pid, signal.SIGKILL)
    adopted(job)
    assert pids(job.running(40)) == pids(status)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    result = job.result()
    assert result["recoveries"] == []
    assert [line["step"] for line in job.metrics()] == list(range(STEPS))
    assert job.metrics()[-1]["reward"] == total(STEPS)
    assert {event["data"]["generation"] for event in of_kind(job, "rank_ready")} == {0}


def test_a_rank_that_dies_with_its_agent_is_the_only_one_that_starts_again(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW)
    status = job.running(10)
    os.kill(status.agents[0].pid, signal.SIGKILL)
    os.kill(pids(status)["work/1"], signal.SIGKILL)
    ended_well(job, process)
    assert launched(job) == [["work/1"]]
    (recovery,) = job.result()["recoveries"]
    assert recovery["causes"] == ["signal"]


@pytest.mark.soak
def test_ranks_whose_zygote_dies_with_their_agent_start_again(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW)
    status = job.running(10)
    zygotes = {psutil.Process(pid).ppid() for pid in pids(status).values()}
    for pid in (status.agents[0].pid, *zygotes):
        os.kill(pid, signal.SIGKILL)
    ended_well(job, process)
    assert {name for names in launched(job) for name in names} == set(pids(status))


def test_an_agent_and_the_master_that_die_together_restart_no_rank(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW)
    status = job.running(10)
    for pid in (status.master_pid, status.agents[0].pid):
        os.kill(pid, signal.SIGKILL)
    ended_well(job, process)
    assert of_kind(job, "master_recovered")
    assert job.result()["recoveries"] == []


def test_an_agent_that_stands_still_for_longer_than_its_lease_is_replaced_and_restarts_no_rank(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW)
    status = job.running(10)
    os.kill(status.agents[0].pid, signal.SIGSTOP)
    adopted(job)
    assert gone(status.agents[0].pid)
    assert pids(job.running(40)) == pids(status)
    ended_well(job, process)
    assert job.result()["recoveries"] == []


@pytest.mark.soak
def test_agents_that_die_one_after_the_other_restart_no_rank(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW)
    status = job.running(10)
    for times in range(1, 4):
        os.kill(ups(job)[-1], signal.SIGKILL)
        adopted(job, times)
    ended_well(job, process)
    assert job.result()["recoveries"] == []
    assert {event["data"]["generation"] for event in of_kind(job, "rank_ready")} == {0}
    assert {event["data"]["pid"] for event in of_kind(job, "rank_up")} == set(pids(status).values())


@pytest.mark.soak
def test_without_a_next_agent_within_start_timeout_s_nothing_is_left(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    process = job.start("steps=100000", f"engine.options.start_timeout_s={STARTS_S}", *SLOW[1:])
    status = job.running(10)
    ranks = pids(status).values()
    (supervisor,) = {psutil.Process(status.agents[0].pid).ppid()}
    (job_id,) = job.ids()
    shm = shm_folder(job_id, status.agents[0].agent)
    os.kill(supervisor, signal.SIGSTOP)
    try:
        os.kill(status.agents[0].pid, signal.SIGKILL)
        time.sleep(STARTS_S / 2)
        assert not any(map(gone, ranks))
        until(lambda: all(map(gone, ranks)) and not shm.exists(), STARTS_S, "everything of the agent is gone")
    finally:
        os.kill(supervisor, signal.SIGKILL)
    process.communicate()
    nothing_is_left([job_id])
