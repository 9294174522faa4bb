"""Conversations over calls: after the death of caller, callee or both, each turn and each action has happened once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import Job, nothing_is_left

STEPS, TALKS, TURNS = 4, 4, 3
ROLES = '''
import asyncio
import os
import signal
import time

from rolemesh import Balanced, Batch, CallUncertainError, SessionLostError, Split, operator, service


def note(name, *words):
    """Append a line in one write, which a kill cannot split."""
    out = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(out, (" ".join(map(str, words)) + "\\n").encode())
    os.close(out)


def dies(once):
    """Kill this process, unless `once` names a kill that has happened."""
    try:
        os.close(os.open(f"killed-{once}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class Data:
    def __init__(self, ctx):
        self.ctx = ctx

    @operator(returns=Split())
    def next(self):
        return Batch({"talk": [self.ctx.step * 100 + n for n in range(TALKS)]})


class Agent:
    """Talks TURNS turns with the model, acts after each in a session, and sends one letter."""

    def __init__(self, ctx, die=()):
        self.ctx, self.die = ctx, list(die)

    @operator(talks=Balanced(rows=1, concurrency=4, ahead=AHEAD), returns=Split())
    async def talk(self, talks):
        ctx, talk = self.ctx, talks["talk"][0]
        said, box, acted = [], ctx.session("box"), []
        for turn in range(TURNS):
            said.append(await ctx.call("model", "sample", talk, turn, list(said)))
            self.after(talk, "turn", turn)
            while len(acted) <= turn:
                try:
                    acted.append(await ctx.call("box", "act", talk, len(acted), said[len(acted)], session=box))
                except SessionLostError:
                    box, acted = ctx.session("box"), []  # restore the box with the same actions
            self.after(talk, "act", turn)
        try:
            letter = await ctx.call("post", "send", talk)
        except CallUncertainError:
            letter = "uncertain"
        self.after(talk, "send", 0)
        note("talks", talk, *said, letter)
        return Batch({"talk": [talk], "letter": [letter]})

    def after(self, talk, what, number):
        if [talk, what, number] == self.die:
            dies("agent")
        if self.die == ["everywhere"]:
            dies(f"{talk}-{what}-{number}")


class Model:
    def __init__(self, ctx, die=()):
        self.ctx, self.die = ctx, list(die)

    @service(recorded=True, concurrency=8)
    async def sample(self, talk, turn, said):
        if [talk, turn] == self.die:
            dies("model")
        word = os.urandom(4).hex()
        note("sampled", talk, turn, word)
        await asyncio.sleep(0.001)
        return word


class Box:
    def __init__(self, ctx, die=()):
        self.ctx, self.die = ctx, list(die)

    @service(recorded=True, concurrency=8)
    async def act(self, talk, number, word):
        if [talk, number] == self.die:
            dies("box")
        note("acted", self.ctx.rank, self.ctx.generation, self.ctx.called_by.session, talk, number, word)
        return word


class Post:
    def __init__(self, ctx, die=()):
        self.ctx, self.die = ctx, list(die)

    @service(repeatable=False, concurrency=8)
    async def send(self, talk):
        note("sent", talk)
        if [talk] == self.die:
            dies("post")
        await asyncio.sleep(0.001)
        return "sent"


class Sink:
    def __init__(self, ctx):
        self.ctx, self.seen = ctx, []

    def add(self, talks) -> None:
        self.seen += zip(talks["talk"], talks["letter"])
        if self.ctx.step == STEPS - 1:
            note("seen", *(f"{talk}:{letter}" for talk, letter in self.seen))

    def snapshot(self):
        return {"seen": [list(each) for each in self.seen]}

    def restore(self, state):
        self.seen = [tuple(each) for each in state["seen"]]
'''
FLOW = """
from rolemesh import flow


@flow
def talking(job):
    job.sink.add(job.agent.talk(job.data.next(), calls=[job.model, job.box, job.post]))
"""
SIZES = {"data": 1, "agent": 2, "model": 2, "box": 2, "post": 1, "sink": 1}
JOB = "\n".join(
    [f"name: talking\nflow: flow.py:talking\nsteps: {STEPS}\nroles:"]
    + [
        f"  {role}: {{use: function, world_size: {size}, resources: {{cpu: 0.1}},"
        f" options: {{target: 'roles.py:{role.title()}'}}}}"
        for role, size in SIZES.items()
    ]
    + ["failover: [{use: process, options: {max_attempts: 10}}]", "engine: {options: {stop_grace_s: 2}}"]
)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, "talking", ("--backend", "local"))
    roles = (
        ROLES.replace("AHEAD", "0")
        .replace("TALKS", str(TALKS))
        .replace("TURNS", str(TURNS))
        .replace("STEPS", str(STEPS))
    )
    for name, text in {"roles.py": roles, "flow.py": FLOW, "job.yaml": JOB}.items():
        (tmp_path / name).write_text(text)
    yield job
    nothing_is_left(job.ids())


def lines(job: Job, name: str) -> list[list[str]]:
    return [line.split() for line in (job.folder / name).read_text().splitlines()]


DEATHS = {
    "nobody": {},
    "the caller after a turn": {"agent": [102, "turn", 1]},
    "the caller after an action": {"agent": [102, "act", 1]},
    "the caller after a letter": {"agent": [103, "send", 0]},
    "a callee in a turn": {"model": [101, 1]},
    "a callee in an action": {"box": [101, 1]},
    "a callee in a letter": {"post": [101]},
    "caller and callees": {"agent": [102, "act", 1], "model": [101, 1], "box": [102, 2], "post": [203]},
}
DEATHS["caller and callees, and items begin early"] = DEATHS["caller and callees"]
QUICK = ("the caller after an action", "caller and callees, and items begin early")


@pytest.mark.parametrize(
    "who", [pytest.param(who, marks=() if who in QUICK else pytest.mark.soak, id=who) for who in DEATHS]
)
def test_each_turn_and_each_action_happens_once(job: Job, who: str) -> None:
    die = DEATHS[who]
    early = who.endswith("early")
    if early:
        roles = job.folder / "roles.py"
        roles.write_text(roles.read_text().replace("ahead=0", "ahead=2"))
    ended = job.run(*(f"roles.{role}.options.kwargs.die={json.dumps(at)}" for role, at in die.items()))
    assert ended.returncode == 0, ended.stdout
    for role in die:
        assert (job.folder / f"killed-{role}").exists(), f"{role} was not killed"
    talks = [str(step * 100 + n) for step in range(STEPS) for n in range(TALKS)]
    sampled, told = lines(job, "sampled"), lines(job, "talks")
    turns = Counter((talk, turn) for talk, turn, _ in sampled)
    # A turn that was sampled, and whose answer died with the model or with the agent before it came, comes again.
    repeated = {at: count for at, count in turns.items() if count > 1}
    assert not repeated or "model" in die, repeated
    words = {talk: {tuple(each[1:]) for each in told if each[0] == talk} for talk in talks}
    assert {talk: len(each) for talk, each in words.items()} == dict.fromkeys(talks, 1), "a talk is repeated as it was"
    assert {(talk, str(turn)) for talk in talks for turn in range(TURNS)} == turns.keys()
    acted = Counter(tuple(each) for each in lines(job, "acted"))
    assert not {action: count for action, count in acted.items() if count > 1}, "an action of one session twice"
    sent = Counter(talk for (talk,) in lines(job, "sent"))
    seen = dict(each.split(":") for each in lines(job, "seen")[-1])
    assert seen.keys() == set(talks)
    assert set(sent.values()) == {1}, "a letter twice"
    assert {talk for talk, letter in seen.items() if letter == "sent"} <= sent.keys()
    uncertain = {talk for talk, letter in seen.items() if letter == "uncertain"}
    if "post" in die:  # other letters may have been under way: of the same step, or of up to two steps more or less
        step = die["post"][0] // 100
        may_be = {talk for talk in talks if abs(int(talk) // 100 - step) <= 2 * early}
        assert str(die["post"][0]) in uncertain <= may_be
    else:
        assert not uncertain


@pytest.mark.soak
@pytest.mark.slow
def test_a_caller_that_dies_after_each_of_its_calls_makes_none_twice(job: Job) -> None:
    most = "failover=[{use: process, options: {max_attempts: 1000}}]"
    ended = job.run('roles.agent.options.kwargs.die=["everywhere"]', most, "steps=1")
    assert ended.returncode == 0, ended.stdout
    talks = [str(n) for n in range(TALKS)]
    kills = list(job.folder.glob("killed-*"))
    assert len(kills) == len(talks) * (2 * TURNS + 1)
    turns = Counter((talk, turn) for talk, turn, _ in lines(job, "sampled"))
    assert turns == {(talk, str(turn)): 1 for talk in talks for turn in range(TURNS)}
    assert set(Counter(map(tuple, lines(job, "acted"))).values()) == {1}
    assert len(lines(job, "acted")) == len(talks) * TURNS, "no action in another session, either"
    assert Counter(talk for (talk,) in lines(job, "sent")) == dict.fromkeys(talks, 1)


GIVEN_UP = """
import asyncio
import os
import signal

from rolemesh import CallTimeoutError, service


def note(name, *words):
    out = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(out, (" ".join(map(str, words)) + "\\n").encode())
    os.close(out)


class Agent:
    def __init__(self, ctx):
        self.ctx = ctx

    async def act(self) -> None:
        ctx = self.ctx
        waits = asyncio.create_task(ctx.call("box", "sleep", "in a cancelled task"))
        try:
            await ctx.call("box", "sleep", "late", timeout=1.0)  # it has begun by then
        except CallTimeoutError as error:
            note("heard", ctx.generation, error.what)
        waits.cancel()
        await ctx.call("box", "until_all_have_ended")
        if ctx.generation == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Box:
    def __init__(self, ctx):
        self.running = 0

    @service(concurrency=8, recorded=True)
    async def sleep(self, who):
        self.running += 1
        note("slept", who)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            note("cancelled", who)
            raise
        finally:
            self.running -= 1

    @service(recorded=True)
    async def until_all_have_ended(self):
        while self.running:
            await asyncio.sleep(0.01)
"""
CALLS = """
from rolemesh import flow


@flow
def talking(job):
    job.agent.act(calls=[job.box])
"""


def test_a_call_that_is_given_up_is_cancelled_and_a_timeout_is_heard_again(job: Job) -> None:
    (job.folder / "roles.py").write_text(GIVEN_UP)
    (job.folder / "flow.py").write_text(CALLS)
    keeps = ("name", "flow", "steps", "roles", "  agent", "  box", "failover", "engine")
    text = [line for line in JOB.splitlines() if line.startswith(keeps)]
    (job.folder / "job.yaml").write_text("\n".join(text).replace("world_size: 2", "world_size: 1"))
    ended = job.run("steps=1")
    assert ended.returncode == 0, ended.stdout
    late, task = ["late"], ["in", "a", "cancelled", "task"]
    once = Counter([tuple(late), tuple(task)])
    assert Counter(map(tuple, lines(job, "slept"))) == once, "the next life hears the timeout from its log at once"
    assert Counter(map(tuple, lines(job, "cancelled"))) == once
    heard = lines(job, "heard")
    assert [each[0] for each in heard] == ["0", "1"]
    assert heard[0][1:] == heard[1][1:]


EARLY = '''
import asyncio

from rolemesh import Balanced, Batch, Split, operator, service


class Data:
    def __init__(self, ctx):
        self.ctx = ctx

    @operator(returns=Split())
    def next(self):
        return Batch({"talk": [10 * self.ctx.step, 10 * self.ctx.step + 1]})


class Agent:
    """Its first talk ends when the last one of step 2 has ended."""

    def __init__(self, ctx):
        self.ctx, self.later = ctx, asyncio.Event()

    @operator(talks=Balanced(rows=1, concurrency=2, ahead=2), returns=Split())
    async def talk(self, talks):
        ctx, talk = self.ctx, talks["talk"][0]
        turn = await ctx.call("model", "sample", talk)
        if talk == 0:
            await self.later.wait()
        if talk == 21:
            self.later.set()
        ctx.count(**{f"of_step_{ctx.step}": 1})
        return Batch({"talk": [turn], "step": [ctx.step]})


class Model:
    @service(recorded=True, concurrency=8)
    async def sample(self, talk):
        return talk


class Sink:
    def __init__(self, ctx):
        self.ctx = ctx

    def add(self, talks) -> None:
        self.ctx.record(talks=list(talks["talk"]), steps=list(talks["step"]))
'''


def test_items_of_later_steps_begin_while_the_longest_of_a_step_goes_on(job: Job) -> None:
    (job.folder / "roles.py").write_text(EARLY)
    flow = job.folder / "flow.py"
    flow.write_text(flow.read_text().replace("job.model, job.box, job.post", "job.model"))
    text = [line for line in JOB.splitlines() if not line.startswith(("  box", "  post"))]
    (job.folder / "job.yaml").write_text("\n".join(text).replace("world_size: 2", "world_size: 1"))
    ended = job.run("metrics.every=1")
    assert ended.returncode == 0, ended.stdout
    found = job.metrics()
    assert [line["records"] for line in found] == [
        {"talks": [10 * step, 10 * step + 1], "steps": [step, step]} for step in range(STEPS)
    ]
    counts = [{name: line[name] for name in line if name.startswith("of_step")} for line in found]
    assert counts == [{f"of_step_{step}": 2} for step in range(STEPS)], "metrics belong to the step of their item"
