"""Records of real jobs are complete, have the rows that the options name, and survive a folder that fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.small_jobs import run_job

from rolemesh_recorder.lines import Account, Head, Life, Stretch
from rolemesh_recorder.reading import kept_rows, read_accounts, read_flow, read_record, recorded_ranks
from rolemesh_recorder.usage import read_usage, recorded_nodes

ROLES = """
import sys
import time
import numpy as np
from rolemesh import Batch, Split, Workload, operator

FROM_ZYGOTE = set(sys.modules)

class Source(Workload):
    @operator(returns=Split())
    def make(self):
        assert "rolemesh_recorder.rank_record" in FROM_ZYGOTE
        time.sleep(0.02)
        return Batch({"number": np.arange(10), "text": ["<b>"] * 10, "bad": np.full(10, np.nan)})

class Sink(Workload):
    @operator(batch=Split())
    def take(self, batch):
        time.sleep(0.05)
"""
SPOILS = """
    def setup(self, ctx):
        path = ctx.run_dir / "record" / f"{ctx.role}-{ctx.rank}"
        path.parent.mkdir(exist_ok=True)
        path.touch()

"""
FLOW = """
from rolemesh import flow

@flow
def numbers(job):
    job.sink.take(job.source.make())
"""
JOB = """
name: recorded
flow: flow.py:numbers
steps: 20
roles:
  source: {use: "roles:Source"}
  sink: {use: "roles:Sink"}
failover: [{use: process}]
"""
ROWS = "plugins: {extensions: [{use: recorder, options: {rows: {source.make: 1/5, sink.take: 1/10}}}]}\n"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for name, text in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", JOB)):
        (tmp_path / name).write_text(text)
    return tmp_path


def run(job: Path, *given: str) -> Path:
    run_job(job, *given)
    return job / "runs" / "recorded"


def test_a_rank_that_was_killed_has_a_record_that_adds_up(job: Path) -> None:
    (job / "roles.py").write_text(ROLES.replace("sleep(0.05)", "sleep(0.2)"))
    # A kill loses up to 0.5 s, which is all that the source needs.
    found = run(job, "--chaos", "kills=2,targets=sink/*")
    flow = read_flow(found)
    assert flow is not None
    assert [op.label for op in flow.ops] == ["source.make", "sink.take"]
    assert {str(ref) for ref in recorded_ranks(found)} == {"source/0", "sink/0"}
    (node,) = recorded_nodes(found)
    usage = list(read_usage(found, node))
    assert sum(line.d for line in usage) > 4_000_000  # 20 steps of 0.2 s
    assert all(0 < line.memory < line.memory_total for line in usage)
    lives: list[list[object]] = []
    for role in ("source", "sink"):
        for line in read_record(found, role, 0):
            if isinstance(line, Head):
                lives.append([])
            lives[-1].append(line)
    heads = [line for life in lives for line in life if isinstance(line, Head)]
    assert any(head.generation for head in heads), "no rank was killed"  # a life of less than 0.5 s has no record
    for life in lives:
        accounts = [line for line in life if isinstance(line, Account)]
        wall = sum(account.d for account in accounts)
        assert {line.what for line in life if isinstance(line, Life)} == {"starting", "setup", "restoring"}
        assert sum(sum(account.spent.values()) for account in accounts) <= 1.01 * wall, "no time counts twice"
        if isinstance(life[0], Head) and life[0].role == "sink":
            computing = sum(account.spent.get("computing", 0) for account in accounts)
            assert computing >= 200_000 * sum(account.steps for account in accounts), "no time of a step is lost"
    sent = sum(line.sent[0][0] for line in read_accounts(found, "source", 0))
    assert 10 * 8 * 19 < sent < 10 * 400 * 30, "at most a repeated step counts twice"
    assert all(0 in line.queued for line in read_accounts(found, "sink", 0))
    spans = [line for line in lives[-1] if isinstance(line, Stretch) and line.phase == "computing"]
    assert spans
    assert all(span.d >= 50_000 and flow.ops[span.op].label == "sink.take" for span in spans)


def test_it_keeps_the_rows_that_the_options_name(job: Path) -> None:
    (job / "job.yaml").write_text(JOB + ROWS)
    rows = list(kept_rows(run(job)))
    made = [row for ref, row in rows if ref.role == "source"]
    assert 10 < len(made) < 80
    assert all(row.op == "source.make" and row.columns["number"] == row.row for row in made)
    assert made[0].columns["bad"] == "nan"
    assert {row.op for ref, row in rows if ref.role == "sink"} == {"sink.take"}


def test_a_folder_that_cannot_be_written_costs_the_record_only(job: Path) -> None:
    (job / "roles.py").write_text(ROLES.replace("(Workload):\n", "(Workload):\n" + SPOILS))
    found = run(job)
    assert "cannot be written" in "".join(path.read_text() for path in (found / "logs").glob("s*.log"))
