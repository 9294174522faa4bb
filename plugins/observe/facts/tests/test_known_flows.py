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
import time
import numpy as np
from rolemesh import Balanced, Batch, Broadcast, Split, Workload, operator, service

SLOW, FAST = 0.06, 0.004

class Role(Workload):
    slow = False
    def setup(self, ctx):
        self.ctx = ctx
    def work(self):
        time.sleep(SLOW if self.slow else FAST)

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

class Tool(Role):
    @service
    def run(self, number: int) -> int:
        time.sleep(0.02)
        return number
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
"""


class Known(NamedTuple):
    station: str
    roles: str = "a: Maker, b: Worker, c: Taker"
    flow: str = "chain"
    overrides: tuple[str, ...] = ()
    rank: str = ""


FLOWS = {
    "slow first role": Known("a.make", "a: SlowMaker, b: Worker, c: Taker"),
    "slow middle role": Known("b.work_on", "a: Maker, b: SlowWorker, c: Taker"),
    "slow last role behind a long queue": Known("c.take", "a: Maker, b: Worker, c: SlowTaker"),
    "slow last role and one credit": Known(
        "c.take", "a: Maker, b: Worker, c: SlowTaker", "chain", ("edges.credits=1",)
    ),
    "straggler": Known("b.work_on", "a: Maker, b: Straggler, c: Taker", "chain", ("roles.b.world_size=2",), "b/1"),
    "lag 0": Known("a.make", "a: SlowMaker, b: Worker, c: Taker", "loop", ("params.lag=0",)),
    "lag 1": Known("c.take", "a: Maker, b: Worker, c: SlowTaker", "loop", ("params.lag=1",)),
    "rows by demand": Known("b.work_on", "a: Maker, b: ByDemand, c: Taker"),
    "calls": Known("tool: serving calls", "a: Maker, b: Asker, c: Taker, tool: Tool", "calls"),
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
