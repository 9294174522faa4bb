"""The record of roles that serve calls agrees with what the kernel says of their processes, and so does the path."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.e2e.small_jobs import run_job

from rolemesh.api.rank_ref import RankRef
from rolemesh_facts.run import RunFacts
from rolemesh_recorder.reading import latest_head

ROLES = """
import asyncio
import os
import sys
import time
import numpy as np
from rolemesh import Balanced, Batch, Broadcast, Split, Workload, operator, service

def burn(seconds):
    "Use so much of a CPU."
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass

class Role(Workload):
    def setup(self, ctx):
        self.ctx = ctx

class Data(Role):
    @operator(returns=Split())
    def next(self):
        return Batch({"x": np.arange(4)})

class Agent(Role):
    "Four conversations at once."
    @operator(batch=Balanced(rows=1, concurrency=4), returns=Split())
    async def converse(self, batch):
        for turn in range(2):
            await self.ctx.call("model", "sample", turn)
            await self.ctx.call("environment", "act", turn)
        return batch

class Environment(Role):
    @service
    def act(self, number: int) -> int:
        burn(0.0003)
        return number

class Model(Role):
    "One coroutine makes batches for all others, as with an engine in the rank's process."
    def setup(self, ctx):
        super().setup(ctx)
        self.running, self.left, self.loaded = False, [], None
    @service(concurrency=64)
    async def sample(self, number: int) -> int:
        await self.ready()
        mine = [8]
        self.left.append(mine)
        while mine[0]:
            if self.running:
                await asyncio.sleep(0.001)
                continue
            self.running = True
            while mine[0]:
                await asyncio.sleep(0)
                burn(0.004)
                for each in self.left:
                    each[0] -= 1
                self.left = [each for each in self.left if each[0]]
            self.running = False
        return number
    async def ready(self):
        pass
    @operator(weights=Broadcast())
    def load(self, weights):
        self.ctx.wait_for_callers()
        if self.loaded is not None and not self.loaded.done():
            self.loaded.set_result(None)
        self.loaded = None

class Drained(Model):
    "Its calls wait for the weights of their step."
    async def ready(self):
        step = self.ctx.called_by.step
        while step > self.ctx.step:
            self.loaded = self.loaded or asyncio.get_running_loop().create_future()
            await asyncio.wait([self.loaded], timeout=0.05)

class Trainer(Role):
    seconds = 0.03
    @operator(batch=Split())
    def train(self, batch):
        burn(self.seconds)
    @operator(returns=Broadcast())
    def weights(self):
        return {"w": np.ones(4)}

class SlowTrainer(Trainer):
    seconds = 0.15

class Scorer(Role):
    "Asks the judge about each row, one after the other."
    @operator(batch=Split(), returns=Split())
    def score(self, batch):
        burn(0.01)
        for x in batch["x"]:
            self.ctx.call_and_wait("judge", "judge", int(x))
        return batch

class Judge(Role):
    @service
    def judge(self, number: int) -> int:
        burn(0.02)
        return number

class ChildJudge(Role):
    "A child process does the work, as an engine's workers do."
    @service(concurrency=4)
    async def judge(self, number: int) -> int:
        burning = "import time\\nwhile time.process_time() < 0.05: pass"
        child = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", burning)
        await child.wait()
        return number

class Sleeper(Role):
    "Waits for something outside."
    @service(concurrency=4)
    async def judge(self, number: int) -> int:
        await asyncio.sleep(0.05)
        return number

class Router(Role):
    "Its operator passes the calls of its service on."
    def setup(self, ctx):
        super().setup(ctx)
        self.asked = []
    @service(concurrency=4)
    async def judge(self, number: int) -> int:
        answer = asyncio.get_running_loop().create_future()
        self.asked.append((number, answer))
        return await answer
    @operator(batch=Split())
    async def route(self, batch):
        for _ in batch["x"]:
            while not self.asked:
                await asyncio.sleep(0.001)
            number, answer = self.asked.pop()
            answer.set_result(await self.ctx.call("model", "judge", number))

class Sink(Role):
    @operator(batch=Split())
    def take(self, batch):
        pass
"""
FLOW = """
from rolemesh import flow

@flow
def agent(job):
    rows = job.agent.converse(job.data.next(), calls=[job.model, job.environment])
    job.trainer.train(rows)
    job.model.load(job.trainer.weights(), lag=0)

@flow
def judged(job):
    job.sink.take(job.scorer.score(job.data.next(), calls=[job.judge]))

@flow
def chain(job):
    rows = job.data.next()
    job.judge.route(rows, calls=[job.model])
    job.sink.take(job.scorer.score(rows, calls=[job.judge]))
"""
AGENT = "data: Data, agent: Agent, environment: Environment, model: {}, trainer: {}"
JUDGED = "data: Data, scorer: Scorer, judge: {}, sink: Sink"


class Measured(NamedTuple):
    """`path`: stations of the critical path, in roles of which nothing else is on it.

    `outside`: roles that wait in an operator or a service for something else than ranks, which counts as their work.
    """

    flow: str
    roles: str
    path: tuple[str, ...]
    outside: tuple[str, ...] = ()


FLOWS = {
    "agent": Measured("agent", AGENT.format("Model", "Trainer"), ("model: serving calls",)),
    "agent whose calls wait for weights": Measured(
        "agent", AGENT.format("Drained", "SlowTrainer"), ("trainer.train", "model: serving calls")
    ),
    "judge": Measured("judged", JUDGED.format("Judge"), ("judge: serving calls",)),
    "judge with child processes": Measured(
        "judged", JUDGED.format("ChildJudge"), ("judge: serving calls",), ("judge",)
    ),
    "service that sleeps": Measured("judged", JUDGED.format("Sleeper"), ("judge: serving calls",), ("judge",)),
    "chain of calls": Measured(
        "chain", JUDGED.format("Router") + ", model: Judge", ("model: serving calls",), ("judge",)
    ),
}
IN_SUITE = "agent whose calls wait for weights"


class Sample(NamedTuple):
    """Seconds of a process: its main thread on a CPU, and any thread ready to run without a CPU.

    A main thread that waits for the interpreter's lock is not ready to run, but the thread that has the lock is.
    """

    time: float
    cpu: float
    queued: float


def samples_of(pid: int) -> Sample:
    """Ask the kernel (Documentation/scheduler/sched-stats.rst). Raises `OSError`."""
    threads = {file.parent.name: file.read_text().split() for file in Path(f"/proc/{pid}/task").glob("*/schedstat")}
    return Sample(
        time.time(), int(threads[str(pid)][0]) / 1e9, sum(int(queued) for _, queued, _ in threads.values()) / 1e9
    )


class Watch(threading.Thread):
    """Samples the ranks of a run until it is over."""

    def __init__(self, run: Path) -> None:
        super().__init__(daemon=True)
        self.facts, self.over, self.found = RunFacts(run), threading.Event(), dict[RankRef, list[Sample]]()

    def run(self) -> None:
        while not self.over.wait(0.05):
            for ref in self.facts.ranks():
                head = latest_head(self.facts.path, ref.role, ref.rank)
                with suppress(OSError, KeyError):  # a rank that has not begun, or has ended
                    self.found.setdefault(ref, []).append(samples_of(head.pid if head else 0))


def shares(watch: Watch, since: float, until: float) -> Iterator[tuple[RankRef, float, float, float]]:
    """Yield the shares of the time in which each rank ran, in which it waited for a CPU, and worked by its record."""
    for ref, found in watch.found.items():
        inside = [sample for sample in found if since <= sample.time <= until]
        one, two = inside[0], inside[-1]
        wall = two.time - one.time
        use = watch.facts.uses(int(one.time * 1e6), int(two.time * 1e6))[ref]
        work = use.share("computing") + use.share("serving")
        yield ref, (two.cpu - one.cpu) / wall, (two.queued - one.queued) / wall, work


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == IN_SUITE else pytest.mark.soak) for name in FLOWS]
)
def test_the_record_of_calls_agrees_with_the_kernel(name: str, tmp_path: Path) -> None:
    flow, roles, path, outside = FLOWS[name]
    lines = "".join(
        f'  {role}: {{use: "roles.py:{cls}", resources: {{cpu: 0.1}}}}\n'
        for role, cls in (each.split(": ") for each in roles.split(", "))
    )
    for file, text in (("roles.py", ROLES), ("flow.py", FLOW)):
        (tmp_path / file).write_text(text)
    (tmp_path / "job.yaml").write_text(f"name: calls\nflow: flow.py:{flow}\nsteps: 12\nroles:\n{lines}")
    watch = Watch(tmp_path / "runs" / "calls")
    watch.start()
    try:
        run_job(tmp_path)
    finally:
        watch.over.set()
        watch.join()
    facts = watch.facts
    since, until = facts.window(1.0)
    found, worked = list(shares(watch, since / 1e6, until / 1e6)), dict[str, float]()
    busy = 0.05 + sum(queued for _, _, queued, _ in found)  # A quiet machine has 0.05.
    for ref, ran, queued, work in found:
        worked[ref.role] = work
        most = 1.01 if ref.role in outside else ran + queued + 0.05
        assert ran - 0.05 <= work <= most, f"{ref} ran for {ran:.0%}, waited for a CPU for {queued:.0%}: {work:.0%}"
    critical = facts.critical(since, until)
    assert critical is not None
    stations = {station.name: station.share for station in critical.stations}
    for station in path:  # Roles take turns, so what they work is the path; but for what waits for a CPU meanwhile.
        role = re.split("[:.]", station)[0]
        assert stations.get(station, 0.0) >= 0.9 * worked[role] - busy, (stations, worked, busy)
