"""A loop whose first value is in the flow, on either engine and after any kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import Job, nothing_is_left

ROLES = '''
import os
import signal


class Adder:
    """Keeps nothing: what it adds to comes back to it over the loop."""

    def __init__(self, ctx, die_at=-1):
        self.ctx, self.die_at, self.seen = ctx, die_at, None

    def add(self, total):
        ctx = self.ctx
        if ctx.step == self.die_at and ctx.generation == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        ctx.metric(total=total["sum"], seen=-1 if self.seen is None else self.seen)
        return {"sum": total["sum"] + ctx.step}

    def load(self, mark) -> None:
        self.seen = mark
'''
FLOW = """
from rolemesh import flow


@flow
def loop(job):
    total = job.feedback("total")
    made = job.adder.add(total, lag=2, initial={"total": {"sum": 100}})
    total.bind(made)
    job.adder.load(job.marker.next(), lag=4, every=4, at=3, initial={"mark": 7})
"""
MARKER = """
def next(ctx):
    return ctx.step
"""
JOB = """
name: loop
flow: loop_flow.py:loop
steps: 20
roles:
  adder: {use: function, options: {target: "loop_roles.py:Adder", kwargs: {die_at: 9}}, resources: {cpu: 0.1}}
  marker: {use: function, options: {target: "marker.py:next"}, resources: {cpu: 0.1}}
failover: [{use: process}]
engine: {options: {stop_grace_s: 2}}
"""


def expected() -> list[tuple[float, float]]:
    totals: list[float] = []
    seen, found = -1.0, []
    for step in range(20):
        total = 100.0 if step < 2 else totals[step - 2]
        totals.append(total + step)
        found.append((total, seen))
        if step % 4 == 3:
            seen = step - 4 if step >= 4 else 7
    return found


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Job]:
    for name, text in (("loop_roles.py", ROLES), ("loop_flow.py", FLOW), ("marker.py", MARKER), ("job.yaml", JOB)):
        (tmp_path / name).write_text(text)
    job = Job(tmp_path, "loop", ("--backend", "local"))
    yield job
    nothing_is_left(job.ids())


@pytest.mark.parametrize("where", [("--engine=inline", "roles.adder.options.kwargs.die_at=-1"), ("--backend", "local")])
def test_each_rank_has_the_first_value_until_there_is_another(loop: Job, where: tuple[str, str]) -> None:
    loop.backend = where
    done = loop.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(line["total"], line["seen"]) for line in loop.metrics()] == expected()
    assert loop.result()["status"] == "done"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("lag=2, initial=", "initial="), "adder.add: initial for 'total', which takes no older value of another call"),
        (("{'sum': 100}", "object()"), "a constant of type object does not travel between processes"),
        (('"total": {', '"totl": {'), "did you mean 'total'?"),
        (("at=3, initial", "at=1, initial"), ""),
    ],
)
def test_wrong_uses_are_an_error_with_their_line(loop: Job, change: tuple[str, str], said: str) -> None:
    path = loop.folder / "loop_flow.py"
    path.write_text(path.read_text().replace('{"sum": 100}', "{'sum': 100}").replace(*change))
    checked = loop.cli("validate", "job.yaml")
    assert checked.returncode == (2 if said else 0), checked.stderr
    assert said in checked.stderr
    assert not said or "loop_flow.py:" in checked.stderr
