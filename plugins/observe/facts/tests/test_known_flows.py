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
import queue
import threading
import time
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
def fast_calls(job):
    job.c.take(job.b.work_on(job.a.make(), calls=[job.fast_tool]))
"""


class Known(NamedTuple):
    station: str
    roles: str = "a: Maker, b: Worker, c: Taker"
    flow: str = "chain"
    overrides: tuple[str, ...] = ()
    rank: str = ""


SLOW_WIRE = 'engine.options.edges.local={use: "roles.py:SlowWire"}'
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
    "slow caller": Known("b.work_on", "a: Maker, b: SlowAsker, c: Taker, fast_tool: FastTool", "fast_calls"),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", FLOWS)
def test_the_slow_station_of_a_real_job_has_most_of_the_critical_path(name: str, tmp_path: Path) -> None:
    known = FLOWS[name]
    roles = "".join(
        f'  {role}: {{use: "roles:{cls}", resources: {{cpu: 0.1}}}}\n'
        for role, cls in (each.split(": ") for each in known.roles.split(", "))
    )
    for file, text in (("roles.py", ROLES), ("flow.py", FLOW)):
        (tmp_path / file).write_text(text)
    (tmp_path / "job.yaml").write_text(f"name: known\nflow: flow.py:{known.flow}\nsteps: 60\nroles:\n{roles}")
    run_job(tmp_path, *known.overrides)
    facts = RunFacts(tmp_path / "runs" / "known")
    found = facts.critical(*facts.window(3.0))
    assert found is not None
    first = found.stations[0]
    assert (first.name, first.share > 0.5) == (known.station, True), found.stations
    if known.rank:
        shares = Counter[str]()
        for hop in found.hops:
            shares[str(hop.ref)] += hop.end - hop.t
        assert shares.most_common(1)[0][0] == known.rank
