"""While a rank takes a snapshot, status, record and lanes say so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import Job
from tests.waiting import until

from rolemesh.api.rank_ref import RankRef
from rolemesh_facts.run import RunFacts
from rolemesh_recorder.lines import Account
from rolemesh_recorder.reading import read_accounts

ROLES = """
import time
from rolemesh import Batch, Split, Workload, operator

class Source(Workload):
    @operator(returns=Split())
    def make(self):
        return Batch({"number": [1, 2]})

class Sink(Workload):
    def setup(self, ctx):
        self.ctx = ctx

    @operator(batch=Split())
    def take(self, batch):
        time.sleep(0.05)

    def snapshot(self):
        first, last = self.ctx.run_dir / "saving", self.ctx.run_dir / "saved"
        if not first.exists():
            first.touch()
            while not last.exists():
                time.sleep(0.01)
        return {}

    def restore(self, state):
        pass
"""
FLOW = "from rolemesh import flow\n\n@flow\ndef f(job):\n    job.sink.take(job.source.make())\n"
JOB = """
name: saves
flow: flow.py:f
steps: 10
roles: {source: {use: "roles:Source"}, sink: {use: "roles:Sink"}}
failover: [{use: process}]
"""
SINK = RankRef("sink", 0)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    for name, text in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", JOB)):
        (tmp_path / name).write_text(text)
    job = Job(tmp_path, "saves", ("--backend", "local"))
    process = job.start()
    until(lambda: (job.run_dir / "saving").exists() or process.poll() is not None, "a snapshot")
    yield job
    (job.run_dir / "saved").touch()
    out, _ = process.communicate()
    assert process.returncode == 0, out


@pytest.mark.more
def test_every_view_says_that_a_rank_saves_while_it_does(job: Job) -> None:
    began = time.time() * 1e6
    until(lambda: "saving" in {rank.phase for rank in getattr(job.status(), "ranks", ())}, "a status that says so")

    def accounts() -> list[Account]:
        return [each for each in read_accounts(job.run_dir, *SINK) if each.t > began]

    until(lambda: len(accounts()) > 2, "accounts of the time in the snapshot")
    assert all(each.spent == {"saving": pytest.approx(each.d, abs=2)} for each in accounts())
    first, *_, last = accounts()
    pieces = RunFacts(job.run_dir).lanes(first.t, last.t + last.d, ranks=[SINK])[SINK]
    assert {piece.phase for piece in pieces if piece.end - piece.t > 100} == {"saving"}
