"""Several jobs on one Ray: nothing starts half, who waits says for what, and the higher priority goes first."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable

import pytest
import ray
from tests.e2e.harness import Job, until

pytestmark = pytest.mark.ray

Make = Callable[..., Job]
BIG = ("roles.work.resources.cpu=1.4", "engine.options.stop_grace_s=1")
ENDLESS = ("steps=100000", "roles.work.options.kwargs.sleep=0.01")


def waits(process: subprocess.Popen[str], job: Job) -> None:
    """Wait until a driver says that it waits."""
    said = job.folder / "said"
    until(lambda: "waiting for room" in said.read_text(), 60, "the job says that it waits")
    assert process.poll() is None


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
    assert process.wait(60) == code


def test_a_job_without_room_says_which_resources_it_waits_for_and_then_runs(make_job: Make, ray_address: str) -> None:
    first, second = (make_job(name, ("--address", ray_address)) for name in ("first", "second"))
    one = started(first, *BIG, *ENDLESS)
    first.running(3)
    two = started(second, *BIG, "engine.options.room_wait_s=60")
    waits(two, second)
    said = (second.folder / "said").read_text()
    assert "needs cpu 1.4" in said
    assert "jobs here: first" in said
    assert second.status() is None
    one.send_signal(signal.SIGINT)
    ended(one, 130)
    ended(two, 0)
    assert second.result()["status"] == "done"


@pytest.mark.soak
def test_a_job_that_has_waited_long_enough_starts_nothing(make_job: Make, ray_address: str) -> None:
    first, second = (make_job(name, ("--address", ray_address)) for name in ("first", "second"))
    one = started(first, *BIG, *ENDLESS)
    first.running(3)
    refused = second.run(*BIG, "engine.options.room_wait_s=1")
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "no room after 1 s" in refused.stderr
    assert "jobs here: first" in refused.stderr
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
    until(lambda: "job high, priority 5, is before this one" in (low.folder / "said").read_text(), 60, "low is behind")
    one.send_signal(signal.SIGINT)
    ended(one, 130)
    high.running(3)
    assert low.status() is None
    three.send_signal(signal.SIGINT)
    ended(three, 130)
    ended(two, 0)


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
    until((job.run_dir / "plan.json").exists, 60, "it is planned")
    taken = ray.util.placement_group([{"CPU": 2.0}] * 2)
    try:
        assert taken.wait(60)
        ended(process, 2)
    finally:
        ray.util.remove_placement_group(taken)
    said = (job.folder / "said").read_text()
    assert "Ray could not reserve the job's bundles within 30 s" in said
    assert "something else took the resources after the plan was made" in said
