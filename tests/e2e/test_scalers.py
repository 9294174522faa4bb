"""Resizes without a person: by scalers in normal operation, and by the level `shrink` after the loss of a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from tests.e2e.harness import Job
from tests.e2e.ladder import LADDER, ended_well, of_kind, pids
from tests.waiting import until

from rolemesh_durable.control.client import ControlClient
from rolemesh_durable.extensions.rehearsal.requests import InjectFault
from rolemesh_durable.extensions.relayout.requests import ResizeJob

Make = Callable[..., Job]
BACKLOG = "{{use: backlog, options: {{period_s: {0}, agree: 2, cool_down_s: {0}}}}}"
RANGE = "roles.work.world_size={min: 1, max: 3}"


def drained(job: Job) -> int:
    """End the job in good order; how many steps it has done."""
    assert job.cli("stop", job.name, "--drain").returncode == 0
    return int(job.result()["committed_steps"])


def test_a_slow_consumer_gets_more_ranks_and_the_result_is_exact(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    process = job.start(
        "steps=100000", "engine.options.grant=20", "roles.work.world_size={min: 1, max: 2}",
        "roles.work.options.kwargs.sleep=0.02",
        f"plugins={{scalers: [{BACKLOG.format(1)}]}}",
    )  # fmt: skip
    with ControlClient(job.run_dir) as client:
        job.running(1)
        first = pids(job.running(1))
        client.ask(ResizeJob({"work": 1}, "the test"))
        until(lambda: of_kind(job, "resized"), "one rank")
        until(lambda: len(of_kind(job, "resized")) > 1, "two ranks")
    now = pids(job.running())
    assert Counter(who.partition("/")[0] for who in now)["work"] == 2
    assert {who: now[who] for who in ("source/0", "sink/0")} == {who: first[who] for who in ("source/0", "sink/0")}
    asked = of_kind(job, "resize_asked")[-1]["data"]
    assert asked["sizes"] == {"work": 2}
    assert asked["reason"].startswith("scaler backlog: work should have 2 ranks instead of 1: its ranks computed for ")
    ended_well(job, process, drained(job))


def test_scalers_without_a_role_that_may_have_other_sizes_are_refused_before_the_start(make_job: Make) -> None:
    job, scaler = make_job(), f"plugins={{scalers: [{BACKLOG.format(1)}]}}"
    refused = job.cli("validate", "job.yaml", scaler)
    assert (refused.returncode, "there are scalers, and no role" in refused.stderr) == (2, True), refused.stderr
    found = job.cli("validate", "job.yaml", scaler, RANGE)
    assert found.returncode == 0, found.stderr


SHRINKS = (
    "steps=100000", "engine.options.grant=20", RANGE, "roles.work.resources.cpu=0.8",
    "roles.work.options.kwargs.sleep=0.01",
    "failover=[{use: process}, {use: node, options: {when_full: fail}}, {use: shrink}, {use: job}]",
    "engine.options.snapshots.persist_every=5",
)  # fmt: skip
NODES = ("--backend", "local", "--nodes", "3x(cpu=1)")


@pytest.mark.parametrize(
    "killed", ["", *(pytest.param(at, marks=pytest.mark.soak) for at in ("rolled_back", "layout_changed", "replanned"))]
)
def test_a_role_that_has_lost_a_node_goes_on_with_fewer_ranks_under_the_same_master(
    make_job: Make, killed: str
) -> None:
    job = make_job(backend=NODES)
    process = job.start(*SHRINKS)
    status = job.running(12)
    assert Counter(rank.role for rank in status.ranks)["work"] == 3
    (home,) = (rank.node for rank in status.ranks if rank.role == "sink")
    with ControlClient(job.run_dir) as client:
        client.ask(InjectFault("kill", f"node:{home}"))
        if killed and killed != "replanned":
            until(lambda: of_kind(job, killed), killed)
            job.kill_process("master")
    until(lambda: [each for each in of_kind(job, "recovered") if each["data"]["level"] == "shrink"], "recovered")
    now = job.running()
    assert {rank.node for rank in now.ranks} == {rank.node for rank in status.ranks} - {home}
    assert Counter(rank.role for rank in now.ranks) == {"source": 1, "work": 2, "sink": 1}
    if killed == "replanned":  # what is left loses a node, too
        with ControlClient(job.run_dir) as client:
            client.ask(InjectFault("kill", f"node:{now.ranks[0].node}"))
        until(lambda: len(of_kind(job, "recovered")) > 1, "recovered again")
        assert Counter(rank.role for rank in job.running().ranks) == {"source": 1, "work": 1, "sink": 1}
    ended_well(job, process, drained(job))
    assert job.result()["lost_nodes"][0] == home
    assert {each["level"] for each in job.result()["recoveries"] if each["outcome"] == "recovered"} == {"shrink"}
    assert bool(killed) or now.epoch == status.epoch, "no other master"


FICKLE = """
from rolemesh_durable.scalers import Scaler, Wanted


class Fickle(Scaler):
    def decide(self, load):
        ranks = next(role.ranks for role in load.roles if role.role == "work")
        return Wanted({"work": ranks % 3 + 1}, f"there are {ranks}")
"""


@pytest.mark.soak
def test_a_scaler_of_ones_own_resizes_again_and_again_while_others_are_killed(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    (job.folder / "ours.py").write_text(FICKLE)
    often = "{use: 'ours.py:Fickle', options: {period_s: 0.5, agree: 1, cool_down_s: 0.5}}"
    process = job.start(
        "steps=100000",
        "engine.options.grant=20",
        RANGE,
        "roles.work.options.kwargs.sleep=0.01",
        f"plugins={{scalers: [{often}]}}",
    )
    job.running(1)
    for times, target in enumerate(("master", "source/0", "agent:node0", "sink/0", "master", "work/0"), 1):
        until(lambda times=times: len(of_kind(job, "resized")) > times, f"{times} times")
        job.kill_process(target)
    reasons = {event["data"]["reason"] for event in of_kind(job, "resize_asked")}
    assert reasons == {f"scaler ours.py:Fickle: there are {n}" for n in (1, 2, 3)}
    ended_well(job, process, drained(job))
