"""A detached job whose load changes: its scaler resizes it, up and down, and nobody asks for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.harness import Job
from tests.e2e.ladder import of_kind, pids
from tests.waiting import until

Make = Callable[..., Job]

ROLES = '''
import time
from pathlib import Path

import numpy as np

from rolemesh import Batch, Broadcast, Split, operator


class Source:
    """12 rows a step, with their global number."""

    def __init__(self, ctx):
        self.ctx = ctx

    @operator(returns=Split())
    def next(self):
        time.sleep(0.02)
        return Batch({"x": np.arange(12.0) + 12 * self.ctx.step})


class Slow:
    """Adds one to each row; its ranks share the seconds that it takes, which the file `load` says."""

    def __init__(self, ctx, which):
        self.ctx, self.which = ctx, which

    @operator(rows=Split(), returns=Split())
    def do(self, rows):
        time.sleep(float(Path("load").read_text().split()[self.which]) * rows.rows / 12)
        return rows | {"x": rows["x"] + 1}


class Sink:
    """Adds up."""

    def __init__(self, ctx):
        self.ctx, self.total = ctx, 0.0

    @operator(rows=Broadcast())
    def add(self, rows):
        self.total += float(rows["x"].sum())
        self.ctx.metric(total=self.total)

    def snapshot(self):
        return {"total": self.total}

    def restore(self, state):
        self.total = state["total"]
'''
FLOW = """
from rolemesh import flow


@flow
def two(job):
    job.sink.add(job.grade.do(job.work.do(job.source.next())))
"""
JOB = """
name: two
flow: flow.py:two
steps: 100000
roles:
  source: {use: function, options: {target: "roles.py:Source"}, resources: {cpu: 0.5}}
  work:
    use: function
    world_size: {min: 1, max: 4}
    options: {target: "roles.py:Slow", kwargs: {which: 0}}
    resources: {cpu: 1}
  grade:
    use: function
    world_size: {min: 1, max: 4}
    options: {target: "roles.py:Slow", kwargs: {which: 1}}
    resources: {cpu: 1}
  sink: {use: function, options: {target: "roles.py:Sink"}, resources: {cpu: 0.5}}
failover: [{use: process}, {use: job}]
plugins:
  scalers: [{use: bottleneck, options: {budget: 5, period_s: 1, agree: 2, cool_down_s: 1}}]
edges: {credits: 4}
"""


@pytest.mark.soak
def test_a_detached_job_follows_its_load_up_and_down_and_its_result_is_exact(make_job: Make) -> None:
    job = make_job("two", backend=("--backend", "local", "--nodes", "2x(cpu=3)"))
    for name, text in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", JOB)):
        (job.folder / name).write_text(text)
    _change(job.folder, 0.12, 0.02)
    returned = job.run("--detach")
    assert returned.returncode == 0, returned.stdout + returned.stderr
    first = pids(job.running(1))
    for load, sizes, held in (
        ((0.12, 0.02), {"work": 4, "grade": 1}, "grade waited for rows from work"),
        ((0.02, 0.12), {"work": 1, "grade": 4}, "sink waited for rows from grade"),
        ((0.01, 0.01), {"work": 1, "grade": 1}, "work waited for rows from source"),
        ((0.12, 0.02), {"work": 4, "grade": 1}, "grade waited for rows from work"),
    ):
        asked = len(of_kind(job, "resize_asked"))
        _change(job.folder, *load)
        until(lambda sizes=sizes: _sizes(job) == sizes, f"{sizes}, with {load}")
        reasons = [event["data"]["reason"] for event in of_kind(job, "resize_asked")[asked:]]
        assert any(f"scaler bottleneck: {held}" in reason for reason in reasons), reasons
    now = pids(job.running())
    assert {who: now[who] for who in ("source/0", "sink/0")} == {who: first[who] for who in ("source/0", "sink/0")}
    assert job.cli("stop", job.name, "--drain").returncode == 0
    until(lambda: (job.run_dir / "result.json").exists(), "the end")
    steps = job.result()["committed_steps"]
    assert job.result()["status"] == "done"
    assert [line["step"] for line in job.metrics()] == list(range(steps))
    assert job.metrics()[-1]["total"] == sum(x + 2 for x in range(12 * steps))


def _change(folder: Path, *load: float) -> None:
    """Set the seconds that `work` and `grade` take from now on for a step with one rank."""
    (folder / "next").write_text(" ".join(map(str, load)))
    (folder / "next").rename(folder / "load")


def _sizes(job: Job) -> dict[str, int]:
    status = job.status()
    ranks = status.ranks if status is not None and status.state == "running" else ()
    return {role: sum(rank.role == role for rank in ranks) for role in ("work", "grade")}
