"""Behaviour that only Ray has: a Ray of the job's own, lost nodes, names on a shared cluster, a wrong address."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.e2e.harness import Job
from tests.waiting import until

pytestmark = pytest.mark.ray

Make = Callable[..., Job]
SLOW = ("steps=100000", "roles.work.options.kwargs.sleep=0.01")


@pytest.mark.soak
def test_a_job_starts_a_ray_of_its_own_and_ends_it(make_job: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """That Ray kills no master and no agent where memory is short, here from the start: they do not need much."""
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.001")
    job = make_job(backend=())
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.result()["status"] == "done"
    assert not [event for event in job.events() if event["kind"] in ("agent_died", "agent_lost", "master_recovered")]


def test_a_killed_driver_takes_its_own_ray_and_the_job_along(make_job: Make) -> None:
    job = make_job(backend=())
    process = job.start(*SLOW)
    status = job.running(3)
    pids = [status.master_pid, *(agent.pid for agent in status.agents), *(rank.pid for rank in status.ranks)]
    process.kill()
    process.wait()
    until(lambda: not [pid for pid in pids if alive(pid)], "master, agents and ranks are gone")


@pytest.mark.soak
def test_a_signal_to_the_drivers_process_group_ends_the_job_before_its_own_ray(make_job: Make) -> None:
    job = make_job(backend=())
    process = job.start(*SLOW)
    job.running(3)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait() == 130
    assert job.result()["status"] == "interrupted"


def test_sigterm_ends_a_job_in_good_order_although_ray_has_a_handler_of_its_own(
    make_job: Make, ray_address: str
) -> None:
    job = make_job(backend=("--address", ray_address))
    process = job.start(*SLOW)
    job.running(3)
    process.terminate()
    assert process.wait() == 130
    assert job.result()["message"] == "interrupted by Ctrl-C"


@pytest.mark.soak
def test_a_detached_job_keeps_its_own_ray_until_it_ends(make_job: Make) -> None:
    job = make_job(backend=())
    returned = job.run("--detach", *SLOW)
    assert returned.returncode == 0, returned.stdout + returned.stderr
    time.sleep(3.0)  # longer than the lease
    status = job.status()
    assert status is not None
    assert status.state == "running"
    again = job.run("--detach", *SLOW)
    assert again.returncode == 2
    assert "rolemesh stop squares" in again.stderr
    assert not list(job.run_dir.parent.glob(".*driver*"))
    assert (job.run_dir / "logs" / "driver.log").exists()
    assert job.cli("stop", "squares").returncode == 0
    assert job.result()["status"] == "interrupted"
    until(lambda: not alive(status.master_pid), "the master is gone")


@pytest.mark.soak
def test_a_name_is_in_use_on_the_whole_cluster_and_free_after_the_end(make_job: Make, ray_address: str) -> None:
    one = make_job("same", ("--address", ray_address))
    other = make_job("other", ("--address", ray_address))
    process = one.start(*SLOW)
    one.running(3)
    refused = other.run("name=same")
    assert refused.returncode == 2
    assert "same" in refused.stderr
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert other.run("name=same").returncode == 0


def test_an_address_without_ray_is_refused_with_a_remedy(make_job: Make) -> None:
    job = make_job(backend=("--address", "127.0.0.1:1"))
    refused = job.run()
    assert refused.returncode == 2
    assert "127.0.0.1:1" in refused.stderr
    assert "--address" in refused.stderr


@pytest.mark.soak
def test_a_lost_node_ends_the_job_and_is_named(make_job: Make, ray_cluster: Any) -> None:
    node = ray_cluster.add_node(num_cpus=1, resources={"doomed": 1})
    ray_cluster.wait_for_nodes()
    job = make_job(backend=("--address", ray_cluster.address))
    process = job.start(*SLOW, "roles.sink.resources.custom.doomed=1")
    status = job.running(3)
    doomed = next(rank for rank in status.ranks if rank.role == "sink")
    assert len(status.agents) == 2
    ray_cluster.remove_node(node, allow_graceful=False)
    assert process.wait() == 1
    failure = job.result()["failure"]
    assert failure["cause"] in ("agent_lost", "node_lost")
    assert failure["node"] == doomed.node
    assert "sink/0" in failure["message"]
    seen = {event["kind"]: event["time"] for event in job.events()}
    assert seen["job_ended"] >= seen["agent_lost"]


def test_each_rank_sees_the_device_that_the_plan_gives_it(make_job: Make, ray_cluster: Any) -> None:
    node = ray_cluster.add_node(num_cpus=1, num_gpus=2)
    ray_cluster.wait_for_nodes()
    job = make_job(backend=("--address", ray_cluster.address))
    roles = (job.folder / "roles.py").read_text()
    shown = 'print("devices", os.environ["CUDA_VISIBLE_DEVICES"], ctx.gpus)'
    (job.folder / "roles.py").write_text(
        roles.replace("self.ctx, self.sleep = ctx, sleep", f"self.ctx, self.sleep = ctx, sleep\n        {shown}")
    )
    done = job.run("roles.work.resources.gpu=1")
    assert done.returncode == 0, done.stdout + done.stderr
    seen = {(job.run_dir / "logs" / f"work-{rank}.log").read_text().splitlines()[0] for rank in (0, 1)}
    assert seen == {"devices 0 (0,)", "devices 1 (0,)"}
    ray_cluster.remove_node(node)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.soak
def test_a_breakpoint_error_on_ray_has_a_remedy(make_job: Make, ray_address: str) -> None:
    job = make_job(backend=("--address", ray_address))
    roles = (job.folder / "roles.py").read_text()
    first = "self.made = 0"
    assert first in roles
    (job.folder / "roles.py").write_text(roles.replace(first, f"{first}\n        breakpoint()", 1))
    ended = job.run()
    assert ended.returncode == 1
    assert "--engine inline" in ended.stdout + ended.stderr
