"""The critical path of real jobs names the station that a sleep makes slow."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.e2e.small_jobs import run_job

from rolemesh_facts.run import RunFacts

ROLES = """
import asyncio
import os
import queue
import signal
import threading
import time
from pathlib import Path
import numpy as np
from rolemesh import Balanced, Batch, Broadcast, Split, Workload, operator, service
from rolemesh_dataplane.shm_transport import ShmTransport
from rolemesh_dataplane.transports import Sender

SLOW, FAST = 0.06, 0.004

class Role(Workload):
    slow = slow_to_load = False
    def setup(self, ctx):
        self.ctx = ctx
    def work(self):
        time.sleep(SLOW if self.slow else FAST)
    def onload(self):
        time.sleep(SLOW if self.slow_to_load else 0)
    def offload(self):
        pass

class Maker(Role):
    @operator(returns=Split())
    def make(self):
        self.work()
        return Batch({"x": np.arange(4)})
    @operator(weights=Broadcast())
    def load(self, weights):
        pass

class SlowMaker(Maker):
    slow = True

class BigMaker(Maker):
    @operator(returns=Split())
    def make(self):
        self.work()
        return Batch({"x": np.zeros((4, 100_000))})

class Worker(Role):
    @operator(batch=Split(), returns=Split())
    def work_on(self, batch):
        self.work()
        return batch

class SlowWorker(Worker):
    slow = True

class Straggler(Worker):
    def setup(self, ctx):
        super().setup(ctx)
        self.slow = ctx.rank == 1

class Summer(Worker):
    @operator(batch=Split(), returns=Split())
    def work_on(self, batch):
        self.work()
        return Batch({"x": batch["x"].sum(1)})

class Taker(Role):
    @operator(batch=Split(), returns=Split())
    def take(self, batch):
        self.work()
        return batch
    @operator(returns=Broadcast())
    def weights(self):
        return {"w": np.ones(4)}

class SlowTaker(Taker):
    slow = True

class LoadedTaker(Taker):
    slow_to_load = True

class ByDemand(Role):
    @operator(batch=Balanced(rows=1), returns=Split())
    def work_on(self, batch):
        time.sleep(0.02)
        return batch

class Asker(Role):
    @operator(batch=Split(), returns=Split())
    async def work_on(self, batch):
        await asyncio.gather(*(self.ctx.call("tool", "run", int(x)) for x in batch["x"]))
        return batch

class SlowAsker(Asker):
    slow = True
    @operator(batch=Split(), returns=Split())
    async def work_on(self, batch):
        self.work()
        await self.ctx.call("fast_tool", "run", int(batch["x"][0]))
        return batch

class Tool(Role):
    @service
    def run(self, number: int) -> int:
        time.sleep(0.02)
        return number

class FastTool(Role):
    @service
    def run(self, number: int) -> int:
        time.sleep(FAST)
        return number

class Joiner(Role):
    @operator(one=Split(), other=Split())
    def join(self, one, other):
        self.work()

class SlowJoiner(Joiner):
    slow = True

class Evaluated(Taker):
    @operator()
    def evaluate(self):
        time.sleep(0.5)

class Evaluator(Role):
    seconds = 0.5
    @operator(weights=Broadcast())
    def evaluate(self, weights):
        time.sleep(self.seconds)

class QuickEvaluator(Evaluator):
    seconds = 0.15

class SlowState(Worker):
    def snapshot(self):
        time.sleep(SLOW)
        return {"x": 1}
    def restore(self, state):
        pass

class WarmingUp(Maker):
    @operator(returns=Split())
    def make(self):
        time.sleep(0 if self.ctx.step else 3)
        return super().make()

class Dying(Worker):
    slow = True
    def work(self):
        if self.ctx.step == 30 and not Path("died").exists():
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().work()

class OneOfFour(Worker):
    def work(self):
        time.sleep(0.06 if self.ctx.rank == 2 else 0.02)

class LongTail(Role):
    @operator(batch=Balanced(rows=1), returns=Split())
    def work_on(self, batch):
        time.sleep(sum(0.08 if x == 0 else 0.01 for x in batch["x"]))
        return batch

class LateTail(Role):
    'The long row is the last one, of rank 1.'
    @operator(batch=Balanced(rows=1), returns=Split())
    def work_on(self, batch):
        time.sleep(sum(0.12 if x == 3 else 0.01 for x in batch["x"]))
        return batch

class SlowWire(ShmTransport):
    'Takes its time for each value in a slot of shared memory, one after the other, as a network does.'
    def connect(self, address):
        return SlowSender(super().connect(address))

class SlowSender(Sender):
    def __init__(self, inner):
        self.inner, self.queue = inner, queue.SimpleQueue()
        self.thread = threading.Thread(target=self.pass_on, daemon=True)
        self.thread.start()
    def pass_on(self):
        while (each := self.queue.get()) is not None:
            seconds, send, *args = each
            time.sleep(seconds)
            send(*args)
    def send(self, frame):
        self.queue.put((0, self.inner.send, frame))
    def send_payload(self, payload, stamp):
        self.queue.put((SLOW, self.inner.send_payload, payload, stamp))
    def close(self, linger_ms):
        self.queue.put(None)
        self.thread.join()
        self.inner.close(linger_ms)
"""
FLOW = """
from rolemesh import flow

@flow
def chain(job):
    job.c.take(job.b.work_on(job.a.make()))

@flow
def loop(job, lag):
    job.a.load(job.c.weights(), lag=lag)
    job.c.take(job.b.work_on(job.a.make()))

@flow
def calls(job):
    job.c.take(job.b.work_on(job.a.make(), calls=[job.tool]))

@flow
def fork(job):
    rows = job.a.make()
    job.c.join(job.b.work_on(rows), job.d.work_on(rows))

@flow
def fork_calls(job):
    rows = job.a.make()
    job.c.join(job.b.work_on(rows, calls=[job.tool]), job.d.work_on(rows, calls=[job.tool]))

@flow
def evaluated(job):
    job.c.take(job.b.work_on(job.a.make()))
    job.d.evaluate(job.c.weights(every=5), every=5)

@flow
def evaluates(job):
    job.c.take(job.b.work_on(job.a.make()))
    job.c.evaluate(every=5)

@flow
def fast_calls(job):
    job.c.take(job.b.work_on(job.a.make(), calls=[job.fast_tool]))
"""


class Known(NamedTuple):
    station: str
    roles: str = "a: Maker, b: Worker, c: Taker"
    flow: str = "chain"
    overrides: tuple[str, ...] = ()
    rank: str = ""


SLOW_WIRE = 'engine.options.transports.local={use: "roles.py:SlowWire"}'
SNAPSHOTS = "engine.options.snapshots={enabled: true, every: 0.001s}"
RETENTION = ("failover=[{use: process}]", "engine.options.retention={max_bytes: 4000000}")
TURNS = "placement={use: collocation, options: {groups: [{roles: [a, c], turns: true}]}}"

FLOWS = {
    "slow first role": Known("a.make", "a: SlowMaker, b: Worker, c: Taker"),
    "slow middle role": Known("b.work_on", "a: Maker, b: SlowWorker, c: Taker"),
    "slow last role behind a long queue": Known("c.take", "a: Maker, b: Worker, c: SlowTaker"),
    "slow last role and one credit": Known(
        "c.take", "a: Maker, b: Worker, c: SlowTaker", "chain", ("edges.credits=1",)
    ),
    "straggler": Known("b.work_on", "a: Maker, b: Straggler, c: Taker", "chain", ("roles.b.world_size=2",), "b/1"),
    "slow edge": Known("a.make → b.work_on (batch)", "a: BigMaker, b: Summer, c: Taker", "chain", (SLOW_WIRE,)),
    "slow edge in a loop": Known(
        "a.make → b.work_on (batch)", "a: BigMaker, b: Summer, c: Taker", "loop", ("params.lag=0", SLOW_WIRE)
    ),
    "turns": Known("c.take", "a: Maker, b: Worker, c: SlowTaker", "chain", (TURNS,)),
    "turns, and slow to load": Known(
        "c: loads, or makes room", "a: Maker, b: Worker, c: LoadedTaker", "chain", (TURNS,)
    ),
    "lag 0, and the slow role has a quick operator": Known(
        "c.take", "a: Maker, b: Worker, c: SlowTaker", "loop", ("params.lag=0",)
    ),
    "lag 0": Known("a.make", "a: SlowMaker, b: Worker, c: Taker", "loop", ("params.lag=0",)),
    "lag 1": Known("c.take", "a: Maker, b: Worker, c: SlowTaker", "loop", ("params.lag=1",)),
    "rows by demand": Known("b.work_on", "a: Maker, b: ByDemand, c: Taker"),
    "calls": Known("tool: serving calls", "a: Maker, b: Asker, c: Taker, tool: Tool", "calls"),
    "two branches, one slow": Known("d.work_on", "a: Maker, b: Worker, c: Joiner, d: SlowWorker", "fork"),
    "slow join": Known("c.join", "a: Maker, b: Worker, c: SlowJoiner, d: Worker", "fork"),
    "slow evaluation": Known("d.evaluate", "a: Maker, b: Worker, c: Taker, d: Evaluator", "evaluated"),
    "evaluation that is quick enough": Known(
        "c.take", "a: Maker, b: Worker, c: SlowTaker, d: QuickEvaluator", "evaluated"
    ),
    "slow evaluation by the trainer": Known("c.evaluate", "a: Maker, b: Worker, c: Evaluated", "evaluates"),
    "slow snapshot of each step": Known("b: snapshot", "a: Maker, b: SlowState, c: Taker", "chain", (SNAPSHOTS,)),
    "slow first step of another role": Known("b.work_on", "a: WarmingUp, b: SlowWorker, c: Taker"),
    "two callers": Known("tool: serving calls", "a: Maker, b: Asker, c: Joiner, d: Asker, tool: Tool", "fork_calls"),
    "restart": Known("b.work_on", "a: Maker, b: Dying, c: Taker", "chain", ("failover=[{use: process}]",)),
    "one of four": Known("b.work_on", "a: Maker, b: OneOfFour, c: Taker", "chain", ("roles.b.world_size=4",), "b/2"),
    "long rows by demand": Known("b.work_on", "a: Maker, b: LongTail, c: Taker", "chain", ("roles.b.world_size=2",)),
    "long rows by demand in a loop with lag 0": Known(
        "b.work_on", "a: Maker, b: LateTail, c: Taker", "loop", ("roles.b.world_size=2", "params.lag=0"), "b/1"
    ),
    "full retention": Known("a: waits for memory", "a: BigMaker, b: Summer, c: SlowTaker", "chain", RETENTION),
    "slow caller": Known("b.work_on", "a: Maker, b: SlowAsker, c: Taker, fast_tool: FastTool", "fast_calls"),
}


def prepare_and_run(known: Known, tmp_path: Path) -> None:
    """Run the job to its end, in the folder ``runs`` of `tmp_path`."""
    roles = "".join(
        f'  {role}: {{use: "roles:{cls}", resources: {{cpu: 0.1}}}}\n'
        for role, cls in (each.split(": ") for each in known.roles.split(", "))
    )
    for file, text in (("roles.py", ROLES), ("flow.py", FLOW)):
        (tmp_path / file).write_text(text)
    (tmp_path / "job.yaml").write_text(f"name: known\nflow: flow.py:{known.flow}\nsteps: 60\nroles:\n{roles}")
    run_job(tmp_path, *known.overrides)


@pytest.mark.soak
@pytest.mark.parametrize("name", FLOWS)
def test_the_slow_station_of_a_real_job_has_most_of_the_critical_path(name: str, tmp_path: Path) -> None:
    known = FLOWS[name]
    prepare_and_run(known, tmp_path)
    facts = RunFacts(tmp_path / "runs" / "known")
    found = facts.critical(*facts.window(3.0))
    assert found is not None
    first = found.stations[0]
    assert (first.name, first.share > 0.5) == (known.station, True), found.stations
    for use in facts.uses(*facts.window(3.0)).values():
        assert sum(use.shares.values()) <= 1.01, use
    if known.rank:
        shares = Counter[str]()
        for hop in found.hops:
            shares[str(hop.ref)] += hop.end - hop.t
        assert shares.most_common(1)[0][0] == known.rank
