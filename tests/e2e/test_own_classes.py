"""``use: file.py:Class``: a job whose every plugin is a class of its own, in a file beside the job file."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import Job, nothing_is_left, one_engine
from tests.waiting import until

OWN = '''
import atexit
import weakref
import os
import signal
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from rolemesh import (
    Batch, Broadcast, Diagnoser, FailoverLevel, Observer, PlanBuilder, RecoveryPlan, Scheduler, Split, Verdict,
    Workload, hookimpl, operator,
)
from rolemesh_dataplane.shm_transport import ShmTransport


class Rows(Workload):
    deterministic = True

    @operator(returns=Split())
    def next(self):
        return Batch({"n": np.arange(4) + 4 * self.ctx.step})

    def setup(self, ctx):
        self.ctx = ctx


class Group(Workload):
    """Adds up over its process group."""

    class Options(BaseModel, extra="forbid"):
        die_at: int = -1

    group = "collective"
    deterministic = True
    preload = ("torch.distributed",)

    def setup(self, ctx):
        import rolemesh_torch

        self.ctx, self.total = ctx, 0
        rolemesh_torch.join(ctx)

    @operator(rows=Split())
    def add(self, rows):
        import torch

        ctx = self.ctx
        if (ctx.step, ctx.rank, ctx.generation) == (self.options.die_at, 1, 0):
            os.kill(os.getpid(), signal.SIGKILL)
        cell = torch.tensor([int(rows["n"].sum())])
        torch.distributed.all_reduce(cell)
        self.total += int(cell)
        ctx.metric(total=self.total)

    def snapshot(self):
        return {"total": self.total}

    def restore(self, state):
        self.total = state["total"]


class Together(Scheduler):
    @hookimpl
    def place(self, request, cluster, plan):
        builder = PlanBuilder(request, cluster, plan)
        for role in request.roles:
            for rank in builder.waiting(role.role):
                builder.put([(role.role, rank)], role.needs, "own: anywhere", list(builder.nodes))
        return builder.build()


class Again(FailoverLevel):
    @hookimpl
    def recover(self, failure, view):
        assert view.verdict.reason == "as I see it", view.verdict
        return RecoveryPlan(view.lost_with(failure), reason="once more")


class Judge(Diagnoser):
    @hookimpl
    def diagnose(self, failure, view):
        return Verdict("software", "as I see it")


class Notes(Observer):
    side = "master"

    @hookimpl
    def job_started(self, run):
        self.run = run
        atexit.register(Path(run.base, "handled").touch)
        self.finalizer = weakref.finalize(self, Path(run.base, "finalized").touch)

    @hookimpl
    def job_ended(self, result):
        Path(self.run.base, "notes.txt").write_text(result["status"])


class Brief(Workload):
    """A group whose steps are short."""

    group = "collective"
    deterministic = True

    def setup(self, ctx):
        self.ctx, self.total, self.taken, self.step = ctx, 0, 0, -1

    @operator(rows=Split())
    def add(self, rows):
        self.total += int(rows["n"].sum())
        self.step = self.ctx.step

    def snapshot(self):
        assert self.step in (-1, self.ctx.step), (self.step, self.ctx.step)
        self.taken += 1
        (self.ctx.run_dir / f"taken-{self.ctx.rank}").write_text(str(self.taken))
        return {"total": self.total}

    def restore(self, state):
        self.total = int(state["total"])


class Wire(ShmTransport):
    class Options(BaseModel, extra="forbid"):
        note: str

    def open(self, inbox, site):
        Path(site.socket_dir).joinpath("opened").touch()
        assert self.options.note == "as the job file says"
        return super().open(inbox, site)
'''
JOB = """
name: own
flow: own_flow.py:own
steps: 12
roles:
  rows: {use: "own.py:Rows", resources: {cpu: 0.1}}
  group: {use: "own.py:Group", world_size: 3, options: {die_at: 5}, resources: {cpu: 0.1}}
placement: {use: pack}
failover: [{use: "own.py:Again"}]
diagnosers: [{use: "own.py:Judge"}]
observers: [{use: "own.py:Notes"}]
engine:
  options:
    stop_grace_s: 2
    transports: {local: {use: "own.py:Wire", options: {note: as the job file says}}}
"""
FLOW = """
from rolemesh import flow


@flow
def own(job):
    job.group.add(job.rows.next())
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Callable[[str], Job]]:
    job = Job(tmp_path, "own", ("--backend", "local"))

    def make(text: str = JOB) -> Job:
        (tmp_path / "own.py").write_text(textwrap.dedent(OWN))
        (tmp_path / "own_flow.py").write_text(FLOW)
        (tmp_path / "job.yaml").write_text(text)
        return job

    yield make
    nothing_is_left(job.ids())


def test_classes_of_the_jobs_own_are_selected_like_plugins(own: Callable[..., Job]) -> None:
    job = own()
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.metrics()[-1]["total"] == sum(range(4 * 12))
    assert (job.folder / "notes.txt").read_text() == "done"
    assert (job.folder / "handled").exists(), "an observer's exit handler ran"
    assert (job.folder / "finalized").exists(), "an observer's finalizer ran"
    [planned] = [event["data"] for event in job.events() if event["kind"] == "recovery_planned"]
    assert planned["plan"]["level"] == "own.py:Again"
    plugins = job.result()["plugins"]
    version = plugins["own.py:Group"].pop("version")
    assert plugins["own.py:Group"] == {"kind": "workloads", "distribution": ""}
    assert version.startswith("sha256:")


@pytest.mark.ray
@pytest.mark.soak
def test_exit_handlers_of_observers_run_in_the_master_on_ray(own: Callable[..., Job], ray_address: str) -> None:
    job = own()
    job.backend = ("--address", ray_address)
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("handled", "finalized"):
        until((job.folder / name).exists, f"{name} is there")


@pytest.mark.soak  # plugins/commands/launch/tests/test_track.py looks at the same
def test_a_group_whose_steps_are_short_leaves_out_the_same_snapshots_in_all_of_its_ranks(
    own: Callable[..., Job],
) -> None:
    text = JOB.replace("own.py:Group", "own.py:Brief").replace(", options: {die_at: 5}", "")
    job = own(
        one_engine(text.replace('"own.py:Again"', "process") + "engine: {options: {snapshots: {persist_every: 100}}}\n")
    )
    done = job.run("steps=1200", "--chaos", "kills=2,seed=1,targets=rank", "--chaos-compare")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the run with failures ended exactly as the undisturbed one" in done.stdout
    taken = [int(path.read_text()) for path in (job.folder / "runs" / "own-undisturbed").glob("taken-*")]
    assert len(set(taken)) == 1, taken
    assert len(taken) == 3
    assert taken[0] < 600


def test_in_one_process_a_group_is_one_rank_and_there_may_be_several_of_them(own: Callable[..., Job]) -> None:
    job = own(JOB.replace("placement:", '  other: {use: "own.py:Group", world_size: 3}\nplacement:'))
    flow = (job.folder / "own_flow.py").read_text()
    (job.folder / "own_flow.py").write_text(flow + "    job.other.add(job.rows.next())\n")
    done = job.cli("run", "job.yaml", "--engine=inline")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "one process cannot have a group of 3 ranks: role group runs as one rank" in done.stdout + done.stderr
    assert "one process cannot have a group of 3 ranks: role other runs as one rank" in done.stdout + done.stderr
    assert job.metrics()[-1]["operators"]["group.add"]["total"] == sum(range(4 * 12))
    assert job.result()["state_sha256"]["group"] == job.result()["state_sha256"]["other"]


def test_a_strategy_of_the_jobs_own_places(own: Callable[..., Job]) -> None:
    job = own(JOB.replace("use: pack", 'use: "own.py:Together"'))
    planned = job.cli("plan", "job.yaml", "--json")
    assert planned.returncode == 0, planned.stderr
    assert {rank["rule"] for rank in json.loads(planned.stdout)["ranks"]} == {"own: anywhere"}


EVEN = """
from rolemesh import PlanBuilder, Scheduler, hookimpl
from rolemesh.placement import Constraint


class Skew(Constraint, frozen=True, tag="own.Skew"):
    role: str

    def forbids(self, ranks, node, placed):
        here, more = placed.here("label.rack", node), len(ranks.get(self.role, ()))
        least = min(each[self.role] for each in placed.domains("label.rack").values())
        return bool(more) and here[self.role] + more - least > 1

    def told(self):
        return f"racks differ by one rank of {self.role}"


class Even(Scheduler):
    @hookimpl
    def place(self, request, cluster, plan):
        builder = PlanBuilder(request, cluster, plan)
        builder.constrain(Skew("even", "work"))
        return builder.build()
"""
EVEN_JOB = """
name: own
flow: even_flow.py:even
steps: 60
roles:
  work: {use: function, world_size: 4, options: {target: even_flow.py:Work}, resources: {cpu: 1}}
placement: [{use: "even.py:Even"}]
failover: [{use: node, options: {node_wait_s: 0.1}}]
observers: []
engine: {options: {snapshots: {replicas: 1}}}
"""
EVEN_FLOW = """
import time
from rolemesh import flow


class Work:
    def step(self):
        time.sleep(0.05)


@flow
def even(job):
    job.work.step()
"""
RACKS = "3x(cpu=2,label.rack=a),2x(cpu=2,label.rack=b)"


@pytest.mark.more
def test_a_constraint_of_the_jobs_own_holds_in_the_plan_and_after_a_node_is_lost(own: Callable[..., Job]) -> None:
    job = own(EVEN_JOB)
    (job.folder / "even.py").write_text(EVEN)
    (job.folder / "even_flow.py").write_text(EVEN_FLOW)
    planned = job.cli("plan", "job.yaml", "--nodes", RACKS)
    assert "held to: racks differ by one rank of work" in planned.stdout, planned.stderr
    done = job.run("--nodes", RACKS, "--chaos", "kills=1,seed=1,targets=node")
    assert done.returncode == 0, done.stdout + done.stderr
    [moved] = [event["data"] for event in job.events() if event["kind"] == "replanned"]
    racks = {f"node-{n}": "a" if n < 3 else "b" for n in range(5)}
    homes = [racks[moved["plan"]["slots"][a["slot"]]["node"]] for a in moved["plan"]["assignments"]]
    assert sorted(homes) == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("use", "said"),
    [
        ("own.py:Gruop", "did you mean 'Group'?"),
        ("owm.py:Group", "there is no file"),
        ("own.py:Judge", "does not derive from Workload"),
    ],
)
def test_errors_of_an_own_class_have_their_line(own: Callable[..., Job], use: str, said: str) -> None:
    job = own(JOB.replace("own.py:Group", use))
    checked = job.cli("validate", "job.yaml")
    assert checked.returncode == 2
    assert said in checked.stderr
    assert "job.yaml:7" in checked.stderr


def test_a_transport_of_one_node_is_refused_between_nodes(own: Callable[..., Job]) -> None:
    job = own(JOB.replace("as the job file says}}}", "x}}, remote: shm}"))
    checked = job.cli("validate", "job.yaml")
    assert checked.returncode == 2
    assert "the transport 'shm' (rolemesh-dataplane" in checked.stderr
    assert "reaches ranks of its own node only" in checked.stderr


@pytest.mark.more
def test_a_lock_holds_their_content(own: Callable[..., Job]) -> None:
    job = own()
    assert job.cli("plugins", "lock", "job.yaml").returncode == 0
    assert job.run("--locked").returncode == 0
    with (job.folder / "own.py").open("a") as file:
        file.write("# changed\n")
    refused = job.run("--locked")
    assert refused.returncode == 2
    assert "has another content here than the lock says" in refused.stderr
