"""Roles with environments of their own: two that need two versions of one package, in one job, on both backends."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable

import pytest
from tests.e2e.harness import Job
from tests.waiting import HANG_S, until
from tests.wheels import write_wheel

from rolemesh_durable.control.client import ControlClient
from rolemesh_durable.extensions.rehearsal.requests import InjectFault

ROLES = '''
import os
import sys

import numpy as np

from rolemesh import Batch, Broadcast, Split, operator


def tiny_version():
    """The version of `tiny` that this process imports; what is told goes to the rank's log."""
    import tiny

    print(f"tiny {tiny.VERSION} in {os.getcwd()} GREETING={os.environ.get('GREETING')} {sys.prefix}", flush=True)
    return tiny.VERSION


class Old:
    def __init__(self, ctx):
        self.ctx, self.version = ctx, tiny_version()

    @operator(returns=Split())
    def next(self):
        return Batch({"x": np.arange(self.ctx.step, self.ctx.step + 2.0), "old": [self.version] * 2})


class New:
    def __init__(self, ctx):
        self.ctx, self.version, self.total = ctx, tiny_version(), 0.0

    @operator(rows=Broadcast(), returns=Split())
    def compare(self, rows):
        assert set(rows["old"]) == {"1.0"} and self.version == "2.0"
        self.total += float(rows["x"].sum())
        return rows

    def snapshot(self):
        return {"total": self.total}

    def restore(self, state):
        self.total = state["total"]


class Plain:
    @operator(rows=Broadcast())
    def add(self, rows):
        try:
            import tiny
        except ModuleNotFoundError:
            return
        raise AssertionError(f"the plain environment has tiny {tiny.VERSION}")
'''

FLOW = """
from rolemesh import flow


@flow
def versions(job):
    job.plain.add(job.new.compare(job.old.next()))
"""

JOB = """
name: versions
flow: flow.py:versions
steps: {steps}
roles:
  old:
    use: function
    world_size: 2
    options: {{target: "roles.py:Old"}}
    resources: {{cpu: 0.1}}
    runtime_env: {{pip: [wheels/tiny-1.0-py3-none-any.whl], env_vars: {{GREETING: hello}}, working_dir: old}}
  new:
    use: function
    options: {{target: "roles.py:New"}}
    resources: {{cpu: 0.1}}
    runtime_env:
      pip: [{requirement}]
      env_vars: {{PIP_NO_INDEX: 1}}
  plain: {{use: function, options: {{target: "roles.py:Plain"}}, resources: {{cpu: 0.1}}}}
failover: [{{use: process}}, {{use: node}}]
engine: {{options: {{grant: 4, stop_grace_s: 2}}}}
"""
NEW = "wheels/tiny-2.0-py3-none-any.whl"


@pytest.fixture
def versions_job(make_job: Callable[..., Job], backend: tuple[str, ...]) -> Callable[..., Job]:
    def make(steps: int = 6, requirement: str = NEW) -> Job:
        return in_job(make_job("versions", backend), steps, requirement)

    return make


def in_job(job: Job, steps: int = 6, requirement: str = NEW) -> Job:
    """`job` with the two roles that need two versions."""
    for version in ("1.0", "2.0"):
        write_wheel(job.folder / "wheels", version)
    (job.folder / "old").mkdir()
    (job.folder / "roles.py").write_text(ROLES)
    (job.folder / "flow.py").write_text(FLOW)
    (job.folder / "job.yaml").write_text(JOB.format(steps=steps, requirement=requirement))
    return job


def imported(job: Job, rank: str) -> list[str]:
    """The version of `tiny` that each process of a rank has imported so far."""
    log = job.run_dir / "logs" / f"{rank}.log"
    return re.findall(r"^tiny (\S+)", log.read_text(), flags=re.MULTILINE) if log.exists() else []


def test_two_roles_that_need_two_versions_of_one_package_run_in_one_job(versions_job: Callable[..., Job]) -> None:
    job = versions_job()
    done = job.run()
    assert done.returncode == 0, done.stderr
    assert [imported(job, rank) for rank in ("old-0", "old-1", "new-0")] == [["1.0"], ["1.0"], ["2.0"]]
    # Its variables and its folder, and nobody else's.
    assert f"in {job.folder / 'old'} GREETING=hello" in (job.run_dir / "logs" / "old-0.log").read_text()
    assert "GREETING=None" in (job.run_dir / "logs" / "new-0.log").read_text()
    assert "job.yaml:11: roles.old.runtime_env.pip: pip installs what its role needs" in done.stdout
    again = job.run()
    assert again.returncode == 0, again.stderr
    assert "pip installs" not in again.stdout


@pytest.mark.soak
def test_ranks_and_agents_that_are_killed_come_back_with_their_own_version(versions_job: Callable[..., Job]) -> None:
    job = versions_job(steps=100_000)
    process = job.start()
    status = job.running(step=3)
    for rank in status.ranks:
        if rank.ref in (("old", 1), ("new", 0)):
            os.kill(rank.pid, signal.SIGKILL)
    until(lambda: [len(imported(job, rank)) for rank in ("old-1", "new-0")] == [2, 2], "both are back")
    until(lambda: (now := job.status()) is not None and now.state == "running", "the job runs again")
    status = job.running(step=status.committed + 20)
    [home] = {rank.node for rank in status.ranks if rank.role == "new"}
    [agent] = [agent for agent in status.agents if agent.node == home]
    for pid in (agent.pid, *(rank.pid for rank in status.ranks if rank.node == home)):
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(imported(job, "new-0")) == 3, "the agent's ranks are back")
    job.running(step=status.committed + 20)
    assert set(imported(job, "old-0") + imported(job, "old-1")) == {"1.0"}
    assert set(imported(job, "new-0")) == {"2.0"}
    process.send_signal(signal.SIGINT)
    process.wait()


@pytest.mark.soak
def test_ranks_of_a_lost_node_find_their_own_version_on_the_next_one(make_job: Callable[..., Job]) -> None:
    job = in_job(make_job("versions"), steps=100_000)
    process = job.start("failover=[{use: node}, {use: job}]", "--nodes", "2x(cpu=1)")
    first = {rank.node for rank in job.running(step=3).ranks}
    with ControlClient(job.run_dir) as client:
        client.ask(InjectFault("kill", f"node:{next(iter(first))}"))
    until(lambda: len(imported(job, "new-0")) == 2, "they are on the other node")
    status = job.running(step=20)
    assert first.isdisjoint(rank.node for rank in status.ranks)
    assert [imported(job, rank) for rank in ("old-0", "old-1", "new-0")] == [["1.0"] * 2, ["1.0"] * 2, ["2.0"] * 2]
    process.send_signal(signal.SIGINT)
    process.wait()


def test_a_requirement_that_does_not_exist_ends_the_job_with_pips_own_words(versions_job: Callable[..., Job]) -> None:
    job = versions_job(requirement="no-such-package-of-rolemesh==1.0")
    done = job.run()
    assert done.returncode == 1
    line = 1 + (job.folder / "job.yaml").read_text().splitlines().index("      pip: [no-such-package-of-rolemesh==1.0]")
    assert f"job.yaml:{line}: roles.new.runtime_env.pip: pip ended with exit code 1" in done.stderr
    assert "No matching distribution found for no-such-package-of-rolemesh==1.0" in done.stderr
    assert "→ correct the requirement" in done.stderr
    assert not any(event["kind"] == "recovery_planned" for event in job.events())


@pytest.mark.soak
def test_a_job_that_waits_for_pip_survives_its_agent_and_can_be_stopped(make_job: Callable[..., Job]) -> None:
    job = in_job(make_job("versions"), requirement="never-answered")
    with socket.create_server(("127.0.0.1", 0)) as silent_index:
        silent_index.settimeout(HANG_S)
        url = f"http://127.0.0.1:{silent_index.getsockname()[1]}/"
        text = (job.folder / "job.yaml").read_text()
        (job.folder / "job.yaml").write_text(text.replace("PIP_NO_INDEX: 1", f"PIP_INDEX_URL: '{url}'"))
        process = job.start()
        first, _ = silent_index.accept()
        status = until(job.status, "the master answers")
        os.kill(status.agents[0].pid, signal.SIGKILL)
        # The next agent's pip has the environment to itself: the first one's is gone.
        second, _ = silent_index.accept()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        for connection in (first, second):
            connection.close()
