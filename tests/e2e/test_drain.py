"""Nodes that leave with notice: their ranks go on elsewhere, no step is lost or run twice, nobody else is restarted."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from tests.e2e.harness import Job
from tests.e2e.ladder import ENDLESS, LADDER, ended_well, of_kind, pids
from tests.waiting import until

from rolemesh_durable.control.client import ControlClient
from rolemesh_durable.extensions.rehearsal.requests import InjectFault
from rolemesh_durable.extensions.relayout.requests import DrainNode

ALONE = ("engine.options.grant=20", "roles.sink.resources.cpu=0.95")
"""On nodes of one core the sink has one for itself."""


def started(make_job: Callable[..., Job], nodes: int = 3, *settings: str) -> tuple[Job, Any, str]:
    """A job that reports the node of its sink, and the ranks that learned of their departure."""
    job = make_job(extra=LADDER, backend=("--backend", "local", "--nodes", f"{nodes}x(cpu=1)"))
    roles = job.folder / "roles.py"
    told = "    def drain(self, left_s):\n        print('told to leave', left_s, self.ctx.step, flush=True)\n\n"
    head, sink, tail = roles.read_text().partition("    @operator(rows=Broadcast())\n")
    roles.write_text(f"{head}{told}{sink}{tail}")
    process = job.start(*ENDLESS, *ALONE, *settings)
    (sink_rank,) = [rank for rank in job.running(3).ranks if rank.role == "sink"]
    return job, process, sink_rank.node


def at(job: Job, role: str = "sink") -> str:
    return next(rank.node for rank in job.running().ranks if rank.role == role)


def finished(job: Job, process: Any) -> None:
    """End the job in good order: everything was computed exactly once."""
    assert job.cli("stop", job.name, "--drain").returncode == 0
    ended_well(job, process, int(job.result()["committed_steps"]))


def stops(job: Job) -> list[Any]:
    """The steps to which all ranks came so that some could leave, and those that were given up."""
    return [event for event in of_kind(job, "stop_point") if event["data"]["then"] != "end"]


def no_step_is_lost(job: Job) -> None:
    """All recoveries were of drains, and began where the ranks had been."""
    steps = [event["data"]["step"] for event in stops(job)]
    for step, planned, launched in zip(
        steps, of_kind(job, "recovery_planned"), of_kind(job, "recovery_launched"), strict=True
    ):
        assert planned["data"]["plan"]["level"] == "drain"
        assert {at for _, _, at in planned["data"]["were"]} == {step}
        assert {rank["resume"] for rank in launched["data"]["ranks"]} == {step}
    assert not of_kind(job, "failure", "agent_lost", "rolled_back")


def test_a_node_that_leaves_with_notice_costs_no_step_and_restarts_nobody_else(make_job: Callable[..., Job]) -> None:
    job, process, node = started(make_job)
    for asked, why in (("node-9", "the job knows no node 'node-9'; there are node-0, node-1, node-2"),):
        refused = job.cli("drain", job.name, asked)
        assert (refused.returncode, why in refused.stderr) == (2, True), refused.stderr
    before = pids(job.running())
    done = job.cli("drain", job.name, node, "--within", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"node {node} has no ranks any more" in done.stdout
    after = pids(job.running())
    assert {who for who in before if after[who] != before[who]} == {"sink/0"}
    assert at(job) != node
    no_step_is_lost(job)
    (hold,) = stops(job)
    told = [line.split() for line in (job.run_dir / "logs" / "sink-0.log").read_text().splitlines() if "told" in line]
    assert [(int(line[-1]), 0 < float(line[-2]) <= 60) for line in told] == [(hold["data"]["step"], True)]
    until(lambda: of_kind(job, "agent_left"), "the agent ends once nobody needs it any more")
    with ControlClient(job.run_dir) as client:
        client.ask(InjectFault("kill", f"node:{node}"))
    finished(job, process)
    no_step_is_lost(job)


@pytest.mark.more
def test_an_agent_that_gets_a_sigterm_gives_notice_of_its_node(make_job: Callable[..., Job]) -> None:
    job, process, node = started(make_job)
    (agent,) = [agent for agent in job.running().agents if agent.node == node]
    os.kill(agent.pid, signal.SIGTERM)
    until(lambda: of_kind(job, "drained"), "drained")
    until(lambda: not os.path.exists(f"/proc/{agent.pid}"), "its process is gone")
    no_step_is_lost(job)
    until(lambda: of_kind(job, "drain_over"), "a node that does not go may have ranks again")
    finished(job, process)


@pytest.mark.more
def test_without_room_the_job_goes_on_and_says_so(make_job: Callable[..., Job]) -> None:
    job, process, node = started(make_job, 2)
    assert job.cli("drain", job.name, node, "--no-wait").returncode == 0
    until(lambda: of_kind(job, "drain_waiting"), "no room")
    status = job.running()
    assert any(f"node {node} is being drained" in warning and "stay for now" in warning for warning in status.warnings)
    assert next(agent.state for agent in status.agents if agent.node == node) == "draining"
    other = next(agent.node for agent in status.agents if agent.node != node)
    last = job.cli("drain", job.name, other)
    assert (last.returncode, "it is the last node that the job may use" in last.stderr) == (2, True)
    until(lambda: job.running().committed > status.committed + 20, "the job goes on")
    assert job.cli("drain", job.name, node, "--back").returncode == 0
    assert not of_kind(job, "stop_point", "recovery_planned")
    finished(job, process)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("moment", "target"),
    [
        *product(
            ("drain_asked", "stop_point", "recovery_planned", "replanned", "recovery_launched"),
            ("master", "agent", "source/0"),
        ),
        *product(("drain_asked", "stop_point"), ("sink/0",)),
    ],
)
def test_any_process_may_be_killed_while_a_node_is_drained(
    make_job: Callable[..., Job], moment: str, target: str
) -> None:
    job, process, node = started(make_job)
    agent = next(agent.agent for agent in job.running().agents if agent.node == node)
    with ControlClient(job.run_dir) as client:
        client.ask(DrainNode(node, "the test"))
        until(lambda: of_kind(job, moment), moment)
        client.ask(InjectFault("kill", f"agent:{agent}" if target == "agent" else target))
    until(lambda: of_kind(job, "drained"), "drained")
    assert at(job) != node
    finished(job, process)
