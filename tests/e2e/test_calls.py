"""Calls between roles. After any kill every call gets an answer. No life of a callee runs a call twice."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.e2e.harness import Job, nothing_is_left
from tests.e2e.ladder import of_kind, pids
from tests.waiting import until

from rolemesh_durable.control.client import ControlClient
from rolemesh_durable.extensions.rehearsal.requests import InjectFault
from rolemesh_durable.extensions.relayout.requests import ResizeJob

STEPS, CALLERS, CALLEES, EACH = 30, 2, 3, 12
ROLES = '''
import asyncio
import os
import signal
import time

from rolemesh import CallError, CallTimeoutError, SessionLostError, service


def dies(ctx, at):
    """The first life ends here."""
    if ctx.generation == 0 and [ctx.role, ctx.rank] == at[:2]:
        if ctx.step == at[2] or ctx.role == "box":
            os.kill(os.getpid(), signal.SIGKILL)


class Agent:
    """Adds up what it is answered; each of its tasks makes two calls, the second with the answer to the first."""

    def __init__(self, ctx, each, die=()):
        self.ctx, self.each, self.die, self.total = ctx, each, list(die), 0

    async def act(self):
        ctx = self.ctx

        async def one(i):
            x = (ctx.step * 10 + ctx.rank) * 1000 + i
            return await ctx.call("box", "twice", await ctx.call("box", "square", x))

        tasks = [asyncio.create_task(one(i)) for i in range(self.each)]
        await tasks[self.each // 2]
        dies(ctx, self.die)
        self.total += sum(await asyncio.gather(*tasks))
        return [self.total]

    def snapshot(self):
        return {"total": self.total}

    def restore(self, state):
        self.total = state["total"]


class Box:
    """Writes down what it runs, in each of its lives."""

    def __init__(self, ctx, die=()):
        self.ctx, self.die, self.count = ctx, list(die), 0
        self.out = open(f"run-{ctx.rank}-{ctx.generation}", "a", buffering=1)
        ctx.warn("in setup")

    @service(recorded=RECORDED)
    def square(self, x):
        print("square", x, file=self.out)
        self.ctx.count(squares=1)
        self.ctx.record(**{f"square {x}": self.ctx.called_by.step})
        return x * x

    @service(concurrency=4, recorded=RECORDED)
    async def twice(self, x):
        print("twice", x, file=self.out)
        await asyncio.sleep(0.001)
        self.count += 1
        self.ctx.metric(doubled=1 + self.ctx.called_by.step)
        if self.count == (self.die or [0, 0, 0])[2]:
            dies(self.ctx, self.die)
        return 2 * x


class Sink:
    def __init__(self, ctx):
        self.ctx, self.total = ctx, 0

    def add(self, totals) -> None:
        self.total += sum(totals)
        self.ctx.record(total=self.total)

    def snapshot(self):
        return {"total": self.total}

    def restore(self, state):
        self.total = state["total"]
'''
FLOW = """
from rolemesh import flow


@flow
def called(job):
    job.sink.add(job.agent.act(calls=[job.box]))
"""
JOB = f"""
name: called
flow: called_flow.py:called
steps: {STEPS}
roles:
  agent:
    use: function
    world_size: {CALLERS}
    options: {{target: "called_roles.py:Agent", kwargs: {{each: {EACH}}}}}
    resources: {{cpu: 0.1}}
  box: {{use: function, world_size: {CALLEES}, options: {{target: "called_roles.py:Box"}}, resources: {{cpu: 0.1}}}}
  sink: {{use: function, options: {{target: "called_roles.py:Sink"}}, resources: {{cpu: 0.1}}}}
failover: [{{use: process, options: {{max_attempts: 10}}}}]
engine: {{options: {{stop_grace_s: 2}}}}
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, "called", ("--backend", "local"))
    files = {"called_roles.py": ROLES.replace("RECORDED", "False"), "called_flow.py": FLOW, "job.yaml": JOB}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    yield job
    nothing_is_left(job.ids())


def runs(job: Job) -> dict[str, Counter[str]]:
    """Return the calls that each life of each callee has run, with their number."""
    return {path.name: Counter(path.read_text().splitlines()) for path in job.folder.glob("run-*")}


def all_calls() -> set[str]:
    numbers = [(s * 10 + r) * 1000 + i for s in range(STEPS) for r in range(CALLERS) for i in range(EACH)]
    return {f"square {x}" for x in numbers} | {f"twice {x * x}" for x in numbers}


def every_report_counts_once(job: Job) -> None:
    """Services report for the steps of their callers, and the callees' own reports are there, too."""
    lines, answered = job.metrics(), CALLERS * EACH
    for line in lines:
        steps = range(line["step"] - line["steps"] + 1, line["step"] + 1)
        assert line["operators"]["box.square"] == {"squares": answered * len(steps)}, line
        assert line["operators"]["box.twice"] == {"doubled": 1 + sum(steps) / len(steps)}, line
        told = {name: step for name, step in line["records"].items() if name.startswith("square ")}
        assert len(told) == answered * len(steps)
        assert set(told.values()) == set(steps)
    # Callees that wait for their grant already run the calls of later steps, whose lines then have no time of theirs.
    assert sum(line["roles"]["box"]["computing_s"] for line in lines) > 0
    warned = {name for line in lines for name in line["records"] if name.startswith("warning ")}
    assert warned == {f"warning box/{rank} #1" for rank in range(CALLEES)}


@pytest.mark.parametrize(
    ("die", "who"),
    [
        ((), ""),
        pytest.param(("agent", 1, 7), "agent", marks=pytest.mark.soak),
        pytest.param(("box", 2, 40), "box", marks=pytest.mark.soak),
        (("both", 0, 0), "both"),
    ],
    ids=["nobody", "a caller", "a callee", "a caller and a callee"],
)
def test_every_call_is_answered_and_none_is_run_twice_in_one_life(job: Job, die: tuple[object, ...], who: str) -> None:
    given = []
    if who in ("agent", "both"):
        given.append(f"roles.agent.options.kwargs.die={json.dumps(['agent', 1, 7])}")
    if who in ("box", "both"):
        given.append(f"roles.box.options.kwargs.die={json.dumps(['box', 2, 40])}")
    undisturbed = job.cli("run", "job.yaml", "--engine=inline")
    assert undisturbed.returncode == 0, undisturbed.stderr
    digests = job.result()["state_sha256"]
    every_report_counts_once(job)
    for path in job.folder.glob("run-*"):
        path.unlink()
    ended = job.run(*given)
    assert ended.returncode == 0, ended.stdout
    result = job.result()
    assert result["state_sha256"] == digests
    restarted = {rank for recovery in result["recoveries"] for rank in recovery["restarted"]}  # maybe both in one
    assert len(restarted) == {"": 0, "both": 2}.get(who, 1)
    found = runs(job)
    assert not {life: calls for life, counted in found.items() if (calls := counted - Counter(counted.keys()))}
    assert set().union(*found.values()) == all_calls()
    every_report_counts_once(job)
    if who in ("", "agent"):
        assert sum(found.values(), Counter[str]()).total() == len(all_calls()), (
            "the callees live, so they know them all"
        )


def test_a_raise_that_is_injected_hits_a_rank_that_has_only_services(job: Job) -> None:
    process = job.start("steps=200")
    job.running(1)
    with ControlClient(job.run_dir) as master:
        master.ask(InjectFault("raise", "box/1"))
    until(lambda: of_kind(job, "recovered"), "box/1 has started again")
    out, _ = process.communicate()
    assert process.returncode == 0, out
    failure = of_kind(job, "failure")[0]["data"]["failure"]
    assert (failure["role"], failure["rank"], failure["cause"]) == ("box", 1, "exception"), failure


@pytest.mark.soak
@pytest.mark.slow
def test_a_hundred_thousand_calls_and_fifty_kills(job: Job) -> None:
    steps, each, callers = 50, 250, 4
    process = job.start(
        f"steps={steps}",
        f"roles.agent.options.kwargs.each={each}",
        f"roles.agent.world_size={callers}",
        "failover=[{use: process, options: {max_attempts: 100}}]",
    )
    rng, killed = random.Random(1), Counter[str]()
    first = job.running()
    while killed.total() < 50 and (status := job.status()) is not None:
        alive = [rank for rank in status.ranks if rank.role != "sink" and rank.state == "running"]
        if len(alive) == len(first.ranks) - 1:
            rank = rng.choice(alive)
            with suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGKILL)
                killed[rank.role] += 1
        until(lambda: process.poll() is not None or generations(job) >= killed.total(), "it was started again")
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert killed.total() == 50, killed
    summed, totals = 0, Counter[int]()
    for step in range(steps):
        for rank in range(callers):
            totals[rank] += sum(2 * ((step * 10 + rank) * 1000 + i) ** 2 for i in range(each))
            summed += totals[rank]
    found = runs(job)
    assert not {life: calls for life, counted in found.items() if (calls := counted - Counter(counted.keys()))}
    ran = sum(found.values(), Counter[str]())
    print(f"{ran.total()} runs of {2 * steps * each * callers} calls, {dict(killed)} killed")
    assert job.metrics()[-1]["records"]["total"] == summed


def generations(job: Job) -> int:
    """How often ranks have been started again."""
    status = job.status()
    return sum(rank.generation for rank in status.ranks) if status is not None else 10_000


SESSIONS = """
import os
import signal

from rolemesh import CalledBy, SessionLostError, service


class Agent:
    def __init__(self, ctx):
        self.ctx, self.lost = ctx, 0

    async def act(self) -> None:
        ctx = self.ctx
        while True:
            try:
                self.add(await self.episode(ctx.session("box")))
                return
            except SessionLostError as error:
                self.lost += 1
                ctx.record(lost=str(error))

    async def episode(self, session):
        for number in range(5):
            told = await self.ctx.call("box", "add", self.ctx.step, session, session=session)
        return told

    def add(self, told):
        self.ctx.count(told=told, lost=self.lost)


class Box:
    def __init__(self, ctx):
        self.ctx, self.sessions = ctx, {}

    @service
    def add(self, step, session):
        assert self.ctx.called_by == CalledBy("agent", 0, step, session), self.ctx.called_by
        ran = self.sessions.setdefault(session, [])
        ran.append(step)
        if step == 11:
            self.ctx.finish("enough")
        if step == 6 and len(ran) == 3 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return len(ran)
"""
SESSION_FLOW = """
from rolemesh import flow


@flow
def called(job):
    job.agent.act(calls=[job.box])
"""


def test_a_session_stays_with_its_rank_and_its_caller_gets_an_error_if_it_is_lost(job: Job) -> None:
    (job.folder / "called_roles.py").write_text(SESSIONS)
    (job.folder / "called_flow.py").write_text(SESSION_FLOW)
    text = JOB.replace(f", kwargs: {{each: {EACH}}}", "").replace(f"world_size: {CALLERS}", "world_size: 1")
    (job.folder / "job.yaml").write_text("\n".join(line for line in text.splitlines() if "sink:" not in line))
    ended = job.run("steps=5000", "metrics.every=1")
    assert ended.returncode == 0, ended.stdout
    lines = job.metrics()
    assert [line["told"] for line in lines[:12]] == [5] * 12
    assert [line["lost"] for line in lines[:12]] == [0] * 6 + [1] * 6
    assert (job.result()["reason"], len(lines) < 5000) == ("box/0: enough", True)
    assert "is lost: its rank has started again" in lines[6]["records"]["lost"]


LATE = """
import os
import time

from rolemesh import CallTimeoutError, service


class Agent:
    def __init__(self, ctx):
        self.ctx = ctx

    def act(self) -> None:
        step = self.ctx.step
        for timeout in (0.01, 0.1, 1, 10, 100):  # a call that the box has not begun yet may never run
            try:
                self.ctx.call_and_wait("box", "late", step, timeout=timeout)
            except CallTimeoutError:
                if os.path.exists(f"begun {step}"):
                    break
        open(f"given up {step}", "w").close()
        self.ctx.call_and_wait("box", "next")


class Box:
    def __init__(self, ctx):
        self.ctx = ctx

    @service
    def late(self, step):
        if os.path.exists(f"begun {step}"):
            return
        open(f"begun {step}", "w").close()
        while not os.path.exists(f"given up {step}"):
            time.sleep(0.001)
        self.ctx.count(ran=1)
        self.ctx.metric(at=step)
        self.ctx.record(told=step)

    @service
    def next(self):
        pass
"""


def test_the_reports_of_an_answer_count_though_its_caller_has_given_up_before_it_came(job: Job) -> None:
    (job.folder / "called_roles.py").write_text(LATE)
    (job.folder / "called_flow.py").write_text(SESSION_FLOW)
    text = JOB.replace(f", kwargs: {{each: {EACH}}}", "").replace(f"world_size: {CALLERS}", "world_size: 1")
    text = text.replace(f"world_size: {CALLEES}", "world_size: 1")
    (job.folder / "job.yaml").write_text("\n".join(line for line in text.splitlines() if "sink:" not in line))
    ended = job.run("steps=5", "metrics.every=1")
    assert ended.returncode == 0, ended.stdout
    lines = job.metrics()
    assert [line["operators"]["box.late"] for line in lines] == [{"ran": 1, "at": step} for step in range(5)]
    assert [line["records"]["told"] for line in lines] == list(range(5))


KEPT = """
import time

from rolemesh import Broadcast, SessionLostError, operator, service


class Agent:
    def __init__(self, ctx):
        self.ctx, self.session, self.lost = ctx, "", 0

    @operator(returns=Broadcast())
    async def act(self):
        ctx = self.ctx
        time.sleep(0.01)
        while True:
            self.session = self.session or ctx.session("box")
            try:
                told = await ctx.call("box", "add", session=self.session)
            except SessionLostError:
                self.session, self.lost = "", self.lost + 1
            else:
                return {"told": told, "lost": self.lost, "twice": await ctx.call("box", "twice", ctx.step)}


class Box:
    def __init__(self, ctx):
        self.told = 0

    @service
    def add(self):
        self.told += 1
        return self.told

    @service
    def twice(self, x):
        return 2 * x


class Sink:
    def __init__(self, ctx):
        self.ctx = ctx

    @operator(totals=Broadcast())
    def add(self, totals):
        assert totals["twice"] == 2 * self.ctx.step
        self.ctx.count(lost=totals["lost"], told=totals["told"])
"""


@pytest.mark.soak
def test_roles_that_call_and_are_called_become_more_and_fewer_and_sessions_are_lost(job: Job) -> None:
    (job.folder / "called_roles.py").write_text(KEPT)
    text = JOB.replace(f", kwargs: {{each: {EACH}}}", "").replace(f"world_size: {CALLERS}", "world_size: 1")
    (job.folder / "job.yaml").write_text(text)
    process = job.start("steps=100000", "engine.options.grant=20", "metrics.every=1")
    job.running(3)
    asked = ({"box": 1}, {"box": 4}, {"agent": 3}, {"agent": 1, "box": 2}, {"sink": 2})
    with ControlClient(job.run_dir) as client:
        for number, sizes in enumerate(asked, 1):
            client.ask(ResizeJob(sizes, "the test"))
            if number == 2:
                until(lambda: len(of_kind(job, "layout_changed")) == 2, "the layout changes")
                client.ask(InjectFault("kill", "agent/0"))
            until(lambda n=number: len(of_kind(job, "resized")) == n, f"{sizes}")
            steps = job.running().committed
            job.running(steps + 5)
    assert not of_kind(job, "resize_refused")
    assert pids(job.running()).keys() == {"agent/0", "box/0", "box/1", "sink/0", "sink/1"}
    assert {event["data"]["plan"]["level"] for event in of_kind(job, "recovery_planned")} == {"resize", "process"}
    assert job.cli("stop", job.name, "--drain").returncode == 0
    out, _ = process.communicate()
    assert process.returncode == 0, out
    lines = job.metrics()
    assert [line["step"] for line in lines] == list(range(len(lines)))
    changed = [event["data"]["layout"]["step"] for event in of_kind(job, "layout_changed")]
    assert [lines[step]["lost"] for step in (changed[0], changed[0] + 1)] == [0, 1]
    assert lines[changed[0] + 1]["told"] == 1, "another rank has begun the session"


RECORDED = """
import os
import signal
import time

from rolemesh import service


class Agent:
    def __init__(self, ctx):
        self.ctx, self.seen = ctx, []

    def act(self) -> None:
        ctx = self.ctx
        got = [ctx.call_and_wait("box", "draw", n) for n in range(5)]
        with open("drawn", "a") as out:
            print(ctx.step, *got, file=out)
        if ctx.step == 4 and ctx.generation == 0:
            for pid in {ctx.call_and_wait("box", "pid", n) for n in range(30)}:
                os.kill(pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen += got

    def snapshot(self):
        return {"seen": self.seen}

    def restore(self, state):
        self.seen = state["seen"]


class Box:
    @service(recorded=True)
    def draw(self, n):
        return int.from_bytes(os.urandom(6), "big")

    @service
    def pid(self, n):
        return os.getpid()
"""


def test_a_restarted_caller_takes_recorded_answers_again_though_all_who_gave_them_are_dead(job: Job) -> None:
    (job.folder / "called_roles.py").write_text(RECORDED)
    (job.folder / "called_flow.py").write_text(SESSION_FLOW)
    text = JOB.replace(f", kwargs: {{each: {EACH}}}", "").replace(f"world_size: {CALLERS}", "world_size: 1")
    (job.folder / "job.yaml").write_text("\n".join(line for line in text.splitlines() if "sink:" not in line))
    ended = job.run("steps=8")
    assert ended.returncode == 0, ended.stdout
    drawn = [line.split() for line in (job.folder / "drawn").read_text().splitlines()]
    by_step: dict[str, set[tuple[str, ...]]] = {}
    for step, *numbers in drawn:
        by_step.setdefault(step, set()).add(tuple(numbers))
    assert len(drawn) == 9, "step 4 has run twice"
    assert {step: len(each) for step, each in by_step.items()} == {str(step): 1 for step in range(8)}


CIRCLE = """
from rolemesh import service


class One:
    def __init__(self, ctx):
        self.ctx = ctx

    def act(self) -> None:
        self.ctx.call_and_wait(self.other, "get")

    @service
    def get(self):
        return 1

    other = "two"


class Two(One):
    other = "one"
"""


@pytest.mark.parametrize("turns", [True, False])
def test_a_called_role_takes_no_turns(job: Job, turns: bool) -> None:
    """It would not answer in between."""
    group = f"{{roles: [agent, box], turns: {str(turns).lower()}}}"
    placement = f"placement={{use: collocation, options: {{groups: [{group}]}}}}"
    checked = job.cli("validate", "job.yaml", f"roles.agent.world_size={CALLEES}", placement)
    assert checked.returncode == (2 if turns else 0), checked.stdout + checked.stderr
    if turns:
        assert "role 'box' is called by others, and takes turns on its devices" in checked.stderr
        assert "leave it out of the group" in checked.stderr


def test_ranks_that_call_each_other_and_wait_are_named_as_a_circle(job: Job) -> None:
    (job.folder / "called_roles.py").write_text(CIRCLE)
    flow = SESSION_FLOW.replace(
        "    job.agent.act(calls=[job.box])", "    job.one.act(calls=[job.two])\n    job.two.act(calls=[job.one])"
    )
    (job.folder / "called_flow.py").write_text(flow)
    roles = "".join(
        f"  {name.lower()}: {{use: function, options: {{target: 'called_roles.py:{name}'}}, resources: {{cpu: 0.1}}}}\n"
        for name in ("One", "Two")
    )
    (job.folder / "job.yaml").write_text(
        f"name: called\nflow: called_flow.py:called\nsteps: 3\nroles:\n{roles}"
        "engine: {options: {hang: {after_s: 2}}}\n"
    )
    ended = job.run()
    assert ended.returncode == 1, ended.stdout
    message = job.result()["message"]
    assert "they wait for each other in a circle" in message, message
    assert "to answer a call" in message
