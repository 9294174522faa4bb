"""One value, one version: a rollout that draws from the system's own randomness, three consumers, and kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import Job, nothing_is_left

STEPS = 80
ROLES = '''
import hashlib
import os
import random
import socket
import time

import numpy as np

from rolemesh import Batch, Split, Workload, operator


def drawn(rows):
    return Batch({"x": np.frombuffer(os.urandom(8 * rows), dtype=np.int64)})


class Rollout:
    """Draws its rows from the system's own randomness; `parts` above 1: as a stream."""

    deterministic = False

    def __init__(self, ctx, rows=64, parts=1):
        self.ctx, self.rows, self.parts = ctx, rows, parts

    def make(self, told):
        time.sleep(0.01)
        return self.stream() if self.parts > 1 else drawn(self.rows)

    def stream(self):
        for _ in range(self.parts):
            yield drawn(self.rows // self.parts)
            time.sleep(0.002)


class Each:
    """Draws a number for each row that it is given; rows are shared out by demand."""

    deterministic = False

    def make(self, told):
        time.sleep(0.004)
        return drawn(told.rows)


class Together(Workload):
    """A group that draws together: its ranks mark their parts alike, with what rank 0 has drawn."""

    group = "collective"

    def setup(self, ctx):
        self.ctx, at = ctx, ctx.rendezvous
        if at.listen_fd is not None:
            listener = socket.socket(fileno=at.listen_fd)
            self.mates = [listener.accept()[0] for _ in range(ctx.world_size - 1)]
        else:
            self.mates = [socket.create_connection((at.address, at.port))]

    @operator(told=Split(), returns=Split())
    def make(self, told):
        time.sleep(0.01)
        mark = os.urandom(8) if self.ctx.rank == 0 else self.mates[0].recv(8, socket.MSG_WAITALL)
        for mate in self.mates if self.ctx.rank == 0 else ():
            mate.sendall(mark)
        time.sleep(0.01 * random.random())  # one has its part long before the other
        return Batch({"x": drawn(8)["x"], "mark": np.repeat(np.frombuffer(mark, dtype=np.int64), 8)})


class Consumer:
    """Its state is a chain of hashes of all that it has been given."""

    def __init__(self, ctx, tells=2):
        self.ctx, self.chain, self.tells = ctx, "", tells

    def tell(self):
        return Batch({"step": np.repeat(self.ctx.step, self.tells)})

    def take(self, rows) -> None:
        assert "mark" not in rows.keys() or len(set(rows["mark"])) == 1, "parts of several computations"
        found = hashlib.sha256(rows["x"].tobytes()).hexdigest()[:16]
        self.chain = hashlib.sha256((self.chain + found).encode()).hexdigest()[:16]
        self.ctx.record(**{f"{self.ctx.role}_took": [found], f"{self.ctx.role}_is": [self.chain]})
        time.sleep(0.005)

    def snapshot(self):
        return {"chain": self.chain}

    def restore(self, state):
        self.chain = state["chain"]
'''
FLOW = """
from rolemesh import flow


@flow
def shared(job):
    made = job.rollout.make(job.a.tell())
    job.a.take(made)
    job.b.take(made)
    job.c.take(made)
"""
CONSUMER = '{use: function, options: {target: "roles.py:Consumer", inputs: {rows: broadcast}}, resources: {cpu: 0.1}}'
JOB = f"""
name: versions
flow: flow.py:shared
steps: {STEPS}
roles:
  rollout:
    use: function
    world_size: 2
    options: {{target: "roles.py:Rollout", kwargs: {{}}}}
    resources: {{cpu: 0.1}}
  a: {CONSUMER}
  b: {CONSUMER}
  c: {CONSUMER}
failover: [{{use: process, options: {{max_attempts: 40}}}}, {{use: node}}, {{use: job, options: {{max_attempts: 20}}}}]
engine: {{options: {{snapshots: {{every: 2, persist_every: 10}}, stop_grace_s: 2}}}}
"""
LARGE = ("roles.rollout.options.kwargs.rows=8192",)
STREAM = ("roles.rollout.options.kwargs.rows=8192", "roles.rollout.options.kwargs.parts=4")
BY_DEMAND = (
    "roles.rollout.options.target=roles.py:Each",
    "roles.rollout.options.inputs.told=balanced(2)",
    "roles.a.options.kwargs.tells=16",
)
GROUP = ("roles.rollout.use=roles.py:Together", "roles.rollout.options={}")
COPIES = ("engine.options.snapshots.replicas=1", "engine.options.snapshots.every=1")
NODES = ("--nodes", "4x(cpu=0.2)", *COPIES)
MANY_NODES = ("--nodes", "11x(cpu=0.2)", *COPIES)
"""Three are used, and each of eight kills may take one away."""


@pytest.fixture
def versions(tmp_path: Path) -> Iterator[Job]:
    for name, text in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", JOB)):
        (tmp_path / name).write_text(text)
    job = Job(tmp_path, "versions", ("--backend", "local"))
    yield job
    nothing_is_left(job.ids())


def check(job: Job, *args: str) -> None:
    """Run the job: in every step all consumers have had the same value, and so all of them are in the same state."""
    done = job.run(*args)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = job.metrics()
    assert [line["step"] for line in lines] == list(range(STEPS))
    back = any(event["kind"] == "rolled_back" for event in job.events())
    # Lines that were not whole when the job went back to the disk have parts of before.
    for line in lines[-1:] if back else lines:
        took = {tuple(line["records"][f"{role}_took"]) for role in "abc"}
        assert len(took) == 1, line
        assert len({tuple(line["records"][f"{role}_is"]) for role in "abc"}) == 1, line
    assert job.result()["recoveries"]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "how",
    [
        pytest.param((), marks=pytest.mark.soak),
        STREAM,
        *(pytest.param(how, marks=pytest.mark.soak) for how in (BY_DEMAND, GROUP)),
    ],
    ids=["small", "streams", "by demand", "group"],
)
def test_all_consumers_have_the_same_value_whatever_is_killed(versions: Job, how: tuple[str, ...], seed: int) -> None:
    # The group of a zygote or an agent that dies starts again as a whole: hit its ranks.
    targets = "rank,rank,rank,master" if how is GROUP else "rank,rank,zygote,agent,master"
    check(versions, *how, "--chaos", f"kills=5,seed={seed},targets={targets}")


def test_a_value_lost_with_its_node_is_taken_back_from_its_users(versions: Job) -> None:
    check(versions, *LARGE, *NODES, "--chaos", "kills=3,seed=1,targets=node,rank")


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "how",
    [LARGE, STREAM, (*LARGE, *MANY_NODES), BY_DEMAND, GROUP, (*GROUP, *MANY_NODES)],
    ids=["large", "streams", "nodes", "by demand", "group", "group nodes"],
)
def test_twenty_seeds_of_kills(versions: Job, how: tuple[str, ...], seed: int) -> None:
    targets = "targets=node,rank,zygote" if "--nodes" in how else "targets=rank,rank,zygote,agent,master"
    check(versions, *how, "--chaos", f"kills=8,seed={seed},{targets}")
