"""Pickled objects in a snapshot on disk run what they say when they are read: a stranger's are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.harness import Job
from tests.e2e.ladder import of_kind

from rolemesh_dataplane.codec import encode
from rolemesh_dataplane.codec import unpickles as found

ROLES = '''
import os
import signal

from rolemesh import Broadcast, operator


def read(path, n):
    """What a pickle may do: anything. Here it leaves a line, so that it is seen to have been read."""
    with open(path, "a") as file:
        file.write("read\\n")
    return Thing(path, n)


class Thing:
    def __init__(self, path, n):
        self.path, self.n = path, n

    def __reduce__(self):
        return read, (self.path, self.n)


class Source:
    def __init__(self, ctx):
        self.ctx, self.made = ctx, 0

    @operator(returns=Broadcast())
    def next(self):
        self.made += 1
        return Thing(str(self.ctx.run_dir.parent / "read"), self.ctx.step)

    def snapshot(self):
        return {"made": self.made}

    def restore(self, state):
        self.made = state["made"]


class Sink:
    def __init__(self, ctx, die_at=-1):
        self.ctx, self.total, self.die_at = ctx, 0, die_at

    @operator(rows=Broadcast())
    def add(self, rows):
        if self.ctx.step == self.die_at and self.ctx.generation == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.total += rows.n

    def snapshot(self):
        return {"total": self.total}

    def restore(self, state):
        self.total = state["total"]
'''
FLOW = """
from rolemesh import flow


@flow
def things(job):
    job.sink.add(job.source.next(), lag={"rows": 2})
"""
JOB = """
name: things
flow: flow.py:things
steps: 10
roles:
  source: {use: function, options: {target: "roles.py:Source"}, resources: {cpu: 0.1}}
  sink: {use: function, options: {target: "roles.py:Sink", kwargs: {die_at: 7}}, resources: {cpu: 0.1}}
failover: [{use: job}]
engine: {options: {snapshots: {every: 1, persist_every: 5}, stop_grace_s: 2}}
"""


def test_a_strangers_pickles_are_refused_and_the_jobs_own_are_not(make_job: Callable[..., Job]) -> None:
    job = make_job("things")
    for name, text in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", JOB)):
        (job.folder / name).write_text(text)
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert [event["data"]["level"] for event in of_kind(job, "recovered")] == ["job"]
    marker = job.folder / "runs" / "read"
    before = marker.read_text()

    refused = job.run("--resume", "things", "steps=20")
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "source/rank-0-of-1.edges" in refused.stderr
    assert "what source/0 had sent for 'rows' of sink.add at step" in refused.stderr
    assert "--trust-pickles" in refused.stderr
    assert marker.read_text() == before
    assert not list((job.folder / "runs").glob(".earlier/*"))

    trusted = job.run("--resume", "things", "--trust-pickles", "steps=20")
    assert trusted.returncode == 0, trusted.stdout + trusted.stderr
    assert marker.read_text() > before
    assert job.result()["committed_steps"] == 20

    assert job.run("--trust-pickles").returncode == 2


PLAIN = [None, 1, "p", ["p", 0, 0], ("p",), {"p": ["p", 1, 2]}, [["p", 0, 0], {"x": ("p", [1.5, b"p"])}], b"p" * 9000]


@pytest.mark.parametrize("value", PLAIN, ids=str)
def test_a_pickle_is_recognized_also_if_hidden_and_other_data_are_not_taken_for_one(value: object) -> None:
    assert not found(encode(value)[0])
    for hidden in ([value, Path("x")], {"a": {"b": (1, Path("x"))}, "c": value}, {Path("x"): value}):
        assert found(encode(hidden)[0])
