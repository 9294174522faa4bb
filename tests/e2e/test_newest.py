"""`lag=AtMost(k)`: a step takes the newest value, at most k steps old, and after any kill the same one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import Job, nothing_is_left

BOUND = 4
STEPS = 60
ROLES = '''
import json
import os
import random
import signal
import time


class Trainer:
    """Makes the version of each step, sometimes slowly."""

    def __init__(self, ctx, die_at=-1):
        self.ctx, self.die_at = ctx, die_at

    def weights(self):
        if self.ctx.step == self.die_at and self.ctx.generation == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(random.choice((0.0, 0.0, 0.04)))
        return {"version": self.ctx.step}


class Rollout:
    """Writes down what each step has taken, in each of its lives."""

    def __init__(self, ctx, die_at=-1):
        self.ctx, self.die_at, self.last = ctx, die_at, -1

    def load(self, weights) -> None:
        self.last = weights["version"]

    def act(self, weights):
        ctx = self.ctx
        with open(f"taken-{ctx.rank}", "a") as out:
            print(json.dumps([ctx.generation, ctx.step, weights["version"], self.last]), file=out)
        time.sleep(random.choice((0.0, 0.0, 0.02)))
        if ctx.step == self.die_at and ctx.generation == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return [weights["version"]]


class Sink:
    """Keeps every version that was used."""

    def __init__(self, ctx, die_at=-1):
        self.ctx, self.die_at, self.versions = ctx, die_at, []

    def take(self, used) -> None:
        if self.ctx.step == self.die_at and self.ctx.generation == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.ctx.record(used=list(used))

    def snapshot(self):
        return {}

    def restore(self, state):
        pass
'''
FLOW = f"""
from rolemesh import AtMost, flow


@flow
def bounded(job, loaded={BOUND}):
    made = job.trainer.weights()
    job.rollout.load(made, lag=AtMost(loaded), every=5, at=4)
    used = job.rollout.act(made, lag={{"weights": AtMost({BOUND})}}, initial={{"weights": {{"version": -1}}}})
    job.sink.take(used)
"""
JOB = f"""
name: bounded
flow: bounded_flow.py:bounded
steps: {STEPS}
roles:
  trainer:
    use: function
    options: {{target: "bounded_roles.py:Trainer", returns: broadcast}}
    resources: {{cpu: 0.1}}
  rollout:
    use: function
    options: {{target: "bounded_roles.py:Rollout", inputs: {{weights: broadcast}}}}
    world_size: 2
    resources: {{cpu: 0.1}}
  sink: {{use: function, options: {{target: "bounded_roles.py:Sink"}}, resources: {{cpu: 0.1}}}}
failover: [{{use: process}}]
engine: {{options: {{snapshots: {{every: 4}}, stop_grace_s: 2}}}}
"""


@pytest.fixture
def bounded(tmp_path: Path) -> Iterator[Job]:
    for name, text in (("bounded_roles.py", ROLES), ("bounded_flow.py", FLOW), ("job.yaml", JOB)):
        (tmp_path / name).write_text(text)
    job = Job(tmp_path, "bounded", ("--backend", "local"))
    yield job
    nothing_is_left(job.ids())


def taken(job: Job, rank: int) -> dict[int, tuple[int, int]]:
    """Return, by step, the taken and the loaded version of a rank. They are the same in each of its lives."""
    found: dict[int, tuple[int, int]] = {}
    for line in (job.folder / f"taken-{rank}").read_text().splitlines():
        _, step, version, loaded = json.loads(line)
        assert found.setdefault(step, (version, loaded)) == (version, loaded), f"step {step} has taken another value"
    return found


def check(job: Job, *args: str) -> list[int]:
    """Run the job; the ages of all that was taken."""
    done = job.run(*args)
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = [taken(job, rank) for rank in range(2)]
    ages = []
    for found in ranks:
        assert sorted(found) == list(range(STEPS))
        versions = [found[step][0] for step in range(STEPS)]
        assert versions == sorted(versions)
        for step, version in enumerate(versions):
            assert step - BOUND <= version <= step
            assert version >= 0 or step < BOUND
            ages.append(step - version)
    for line in job.metrics():
        # Both ranks' values, in the order of the ranks: what was used is what the file says was taken.
        assert line["records"]["used"] == [found[line["step"]][0] for found in ranks]
        assert 0 <= line["staleness"]["rollout.act"] <= BOUND
    return ages


@pytest.mark.parametrize("where", [("--engine=inline",), pytest.param(("--backend", "local"), marks=pytest.mark.soak)])
def test_the_newest_value_there_is(bounded: Job, where: tuple[str, ...]) -> None:
    bounded.backend = where
    ages = check(bounded)
    if where == ("--engine=inline",):
        assert set(ages) == {0}
    else:
        assert len(set(ages)) > 1


@pytest.mark.parametrize(
    "killed",
    [
        *(pytest.param((one,), marks=pytest.mark.soak) for one in ("rollout=23", "trainer=23", "sink=23")),
        ("rollout=17", "trainer=31", "sink=40"),
    ],
)
def test_a_restarted_rank_takes_the_same_items_again(bounded: Job, killed: tuple[str, ...]) -> None:
    roles = (each.partition("=")[::2] for each in killed)
    check(bounded, *(f"roles.{role}.options.kwargs.die_at={step}" for role, step in roles))
    assert bounded.result()["recoveries"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("AtMost(loaded), every=5, at=4", "AtMost(-1), every=5, at=4"), "lag of AtMost is -1"),
        (("job.trainer.weights()", "job.trainer.weights(every=9)"), "let it be lag=AtMost(8) at least"),
        (("job.trainer.weights()", "job.trainer.weights(every=3)"), ""),
    ],
)
def test_wrong_uses_are_an_error_with_their_line(bounded: Job, change: tuple[str, str], said: str) -> None:
    path = bounded.folder / "bounded_flow.py"
    path.write_text(path.read_text().replace(*change))
    checked = bounded.cli("validate", "job.yaml")
    assert checked.returncode == (2 if said else 0), checked.stderr
    assert said in checked.stderr
    assert not said or "bounded_flow.py:" in checked.stderr
