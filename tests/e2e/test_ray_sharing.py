"""Several jobs on one Ray: nothing starts half, who waits says for what, and the higher priority goes first."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable

import pytest
import ray
from tests.e2e.harness import Job
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.ray

Make = Callable[..., Job]
BIG = ("roles.work.resources.cpu=1.4", "engine.options.stop_grace_s=1")
ENDLESS = ("steps=100000", "roles.work.options.kwargs.sleep=0.01")


def waits(process: subprocess.Popen[str], job: Job) -> None:
    """Wait until a driver says that it waits."""
    said = job.folder / "said"
    until(lambda: "waiting for room" in said.read_text(), "the job says that it waits")
    assert process.poll() is None


def text(job: Job) -> str:
    return (job.folder / "said").read_text()


def started(job: Job, *overrides: str) -> subprocess.Popen[str]:
    """The job's driver in the background; what it says goes to a file."""
    with (job.folder / "said").open("w") as said:
        process = subprocess.Popen(
            job.command("run", "job.yaml", *job.backend, *overrides),
            cwd=job.folder,
            stdout=said,
            stderr=said,
            text=True,
        )
    job.started.append(process)
    return process


def ended(process: subprocess.Popen[str], code: int) -> None:
    assert process.wait() == code


def test_a_job_without_room_says_which_resources_it_waits_for_and_then_runs(make_job: Make, ray_address: str) -> None:
    first, second = (make_job(name, ("--address", ray_address)) for name in ("first", "second"))
    one = started(first, *BIG, *ENDLESS)
    first.running(3)
    two = started(second, *BIG, "engine.options.room_wait_s=60")
    waits(two, second)
    said = (second.folder / "said").read_text()
    assert "needs cpu 1.4" in said
    assert "job first has cpu 3" in said
    assert second.status() is None
    told = json.loads(second.cli("status", "second", "--json").stdout)
    assert told["state"] == "waiting"
    assert re.search(r"needs cpu 1\.4.*; job first has cpu 3", told["message"])
    assert "waiting" in second.cli("status").stdout
    refused = second.cli("stop", "second")
    assert f"kill {two.pid} on" in refused.stderr, refused.stderr
    assert "waits for room" in second.run(*BIG).stderr, "another one of its name"
    one.send_signal(signal.SIGINT)
    ended(one, 130)
    ended(two, 0)
    assert second.result()["status"] == "done"
    assert json.loads(second.cli("status", "second", "--json").stdout)["state"] == "done"
    assert not list(second.run_dir.parent.glob(".*.waiting"))


@pytest.mark.soak
def test_a_job_that_has_waited_long_enough_starts_nothing(make_job: Make, ray_address: str) -> None:
    first, second = (make_job(name, ("--address", ray_address)) for name in ("first", "second"))
    one = started(first, *BIG, *ENDLESS)
    first.running(3)
    refused = second.run(*BIG, "engine.options.room_wait_s=1")
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "no room after 1 s" in refused.stderr
    assert "job first has cpu 3" in refused.stderr
    assert not second.run_dir.exists()
    one.send_signal(signal.SIGINT)
    ended(one, 130)


@pytest.mark.soak
def test_the_waiting_job_with_the_higher_priority_goes_first(make_job: Make, ray_address: str) -> None:
    first, low, high = (make_job(name, ("--address", ray_address)) for name in ("first", "low", "high"))
    one = started(first, *BIG, *ENDLESS)
    first.running(3)
    two = started(low, *BIG, "engine.options.room_wait_s=120")
    waits(two, low)
    three = started(high, *BIG, "engine.options.room_wait_s=120", "engine.options.priority=5", *ENDLESS)
    waits(three, high)
    until(lambda: re.search(r"job high of \S+, priority 5, is before this one", text(low)), "low is behind")
    one.send_signal(signal.SIGINT)
    ended(one, 130)
    high.running(3)
    assert low.status() is None
    three.send_signal(signal.SIGINT)
    ended(three, 130)
    ended(two, 0)


@pytest.mark.soak
def test_a_small_job_does_not_take_what_a_large_one_waits_for(make_job: Make, ray_address: str) -> None:
    first, large, small = (make_job(name, ("--address", ray_address)) for name in ("first", "large", "small"))
    one = started(first, *BIG, *ENDLESS)
    first.running(3)
    two = started(large, *BIG, "engine.options.room_wait_s=120", *ENDLESS)
    waits(two, large)
    three = started(small, "engine.options.room_wait_s=120", *ENDLESS)
    waits(three, small)
    assert re.search(r"job large of \S+, priority 0, is before this one and waits for cpu 3", text(small)), text(small)
    assert small.status() is None, "it fits beside the first one"
    one.send_signal(signal.SIGINT)
    ended(one, 130)
    for job, process in ((large, two), (small, three)):
        job.running(3)
        process.send_signal(signal.SIGINT)
        ended(process, 130)


@pytest.mark.soak
def test_a_job_that_runs_does_not_grow_into_what_a_waiting_job_needs(make_job: Make, ray_address: str) -> None:
    first, elastic, large = (make_job(name, ("--address", ray_address)) for name in ("first", "elastic", "large"))
    one = started(first, *BIG, "roles.work.world_size=1", *ENDLESS)
    first.running(3)
    may_grow = ("roles.work.world_size={min: 1, max: 2}", "failover=[{use: process}]")
    two = started(elastic, *BIG, *may_grow, *ENDLESS)
    elastic.running(3)
    three = started(large, *BIG, "engine.options.room_wait_s=600")
    waits(three, large)
    one.send_signal(signal.SIGINT)
    ended(one, 130)
    until(lambda: "job first has" not in text(large).splitlines()[-1], "it waits for the other one only")
    refused = elastic.cli("scale", "elastic", "work=2")
    assert refused.returncode != 0
    assert "needs cpu 1.4" in refused.stderr, refused.stderr
    assert len([rank for rank in elastic.running().ranks if rank.role == "work"]) == 1
    three.send_signal(signal.SIGINT)
    ended(three, 130)
    until(lambda: "work 1 → 2" in text(elastic), "it grows, since nobody waits")
    two.send_signal(signal.SIGINT)
    ended(two, 130)


@pytest.mark.soak
def test_killed_commands_that_wait_or_run_hold_nobody_up(make_job: Make, ray_address: str) -> None:
    first, dead, last = (make_job(name, ("--address", ray_address)) for name in ("first", "dead", "last"))
    one = started(first, *BIG, *ENDLESS, "engine.options.lease_s=3")
    first.running(3)
    two = started(dead, *BIG, "engine.options.room_wait_s=120")
    waits(two, dead)
    three = started(last, *BIG, "engine.options.room_wait_s=120")
    until(lambda: "job dead of" in text(last), "it is behind the one that will be killed")
    two.kill()
    assert "waiting" not in dead.cli("status").stdout
    one.kill()
    ended(three, 0)
    assert last.result()["status"] == "done"
    assert not dead.run_dir.exists()


@pytest.mark.soak
def test_two_jobs_that_start_at_once_do_not_both_get_half(make_job: Make, ray_address: str) -> None:
    jobs = [make_job(name, ("--address", ray_address)) for name in ("one", "two")]
    processes = [started(job, *BIG, "engine.options.room_wait_s=90") for job in jobs]
    for process in processes:
        ended(process, 0)
    times = []
    for job in jobs:
        events = {event["kind"]: event["time"] for event in job.events()}
        times.append((events["job_started"], events["job_ended"]))
    (_, first_end), (second_start, _) = sorted(times)
    assert second_start > first_end - 1.0


@pytest.mark.soak
@pytest.mark.slow
def test_a_job_whose_room_is_taken_while_it_starts_says_so(make_job: Make, ray_address: str) -> None:
    """The master waits 30 s for the planned resources, and meanwhile the driver keeps its place in the queue."""
    job = make_job("late", ("--address", ray_address))
    process = started(job, *BIG)
    until((job.run_dir / "plan.json").exists, "it is planned")
    taken = ray.util.placement_group([{"CPU": 2.0}] * 2)
    try:
        assert taken.wait(HANG_S)
        ended(process, 2)
    finally:
        ray.util.remove_placement_group(taken)
    said = (job.folder / "said").read_text()
    assert "Ray could not reserve the job's bundles within 30 s" in said
    assert "something else took the resources after the plan was made" in said
