"""Small jobs for engines and backends: one adds up numbers, one passes values of every kind, and one uses every method
of a rank's context.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rolemesh import Batch, Broadcast, Job, Observer, RankContext, Split, flow, hookimpl, operator, service

__all__ = ["HERE", "VARIABLE", "Noting", "asking", "counting", "expected", "summing", "various"]

HERE = "rolemesh_testing.engines.job"
VARIABLE = "CONFORMANCE_VALUE"
"""Environment variable that the jobs look at."""


def numbers(ctx: RankContext, pause_s: float = 0.0, fail_at: int = -1, leave: bool = False, begun: str = "") -> Batch:
    """Makes four numbers per step. Adds a byte per step to the file `begun`."""
    if begun:
        with Path(begun).open("ab") as file:
            file.write(b".")
    time.sleep(pause_s)
    if ctx.step == fail_at:
        if leave:
            sys.exit(0)
        raise ValueError("it was asked to fail")
    if ctx.step == 0:
        ctx.record(variable=os.environ.get(VARIABLE))
    return Batch({"number": [4 * ctx.step + n for n in range(4)]})


class Sum:
    """Adds up the numbers that this rank receives."""

    def __init__(self, ctx: RankContext, fail: bool = False) -> None:
        if fail:
            raise ValueError("it was asked to fail")
        self.ctx = ctx
        self.total = 0

    def add(self, numbers: Batch) -> None:
        """Add this rank's numbers."""
        self.total += sum(numbers["number"])
        self.ctx.count(total=self.total)

    def snapshot(self) -> dict[str, int]:
        """Return the sum."""
        return {"total": self.total}

    def restore(self, state: dict[str, int]) -> None:
        """Restore the sum."""
        self.total = state["total"]


class Noting(Observer):
    """Writes what the engine tells it into ``noted.jsonl`` of the run's folder."""

    def _note(self, *note: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(note) + "\n")

    @hookimpl
    def job_started(self, run: Any) -> None:
        """Note the job's roles."""
        self.path = Path(run.run_dir, "noted.jsonl")
        self._note("job_started", dict(run.roles))

    @hookimpl
    def event(self, event: Any) -> None:
        """Note number and kind."""
        self._note("event", event.seq, event.kind)

    @hookimpl
    def steps_finished(self, metrics: Any) -> None:
        """Note the steps."""
        for line in metrics:
            self._note("line", line.step, line.steps)

    @hookimpl
    def job_ended(self, result: Any) -> None:
        """Note the status."""
        self._note("job_ended", result["status"])


@flow
def counting(job: Any) -> None:
    """The flow of one step."""
    job.sink.add(job.source.numbers())


def summing(name: str, base: Path, *, steps: int = 10, fail: bool = False, **source: Any) -> Job:
    """Return the job. `source` are arguments of `numbers`: it takes `pause_s` seconds per step, and raises or leaves at
    step `fail_at`. `fail`: the other role raises at its start.
    """
    sink = {"target": f"{HERE}:Sum", "kwargs": {"fail": fail}}
    return (
        Job(name, base=base, steps=steps, observers=[])
        .role("source", use="function", options={"target": f"{HERE}:numbers", "kwargs": source}, resources={"cpu": 0.1})
        .role("sink", use="function", world_size=2, options=sink, resources={"cpu": 0.1})
        .flow(counting)
    )


class Maker:
    """Makes values."""

    def __init__(self, ctx: RankContext) -> None:
        self.ctx = ctx

    def rows(self) -> Batch:
        """Rows that two ranks cannot share evenly in each step."""
        return Batch({"number": np.arange(5 + self.ctx.step % 3) + 100 * self.ctx.step})

    @operator(returns=Broadcast())
    def version(self) -> int:
        """The step."""
        return self.ctx.step

    @operator(returns=Broadcast())
    def notes(self) -> dict[str, Any]:
        """A value that consumers may change."""
        return {"steps": [self.ctx.step], "array": np.zeros(2)}

    @operator(returns=Split())
    def pieces(self) -> Iterator[Batch]:
        """Three rows in two chunks."""
        yield Batch({"number": np.array([10 * self.ctx.step])})
        yield Batch({"number": np.array([10 * self.ctx.step + 1, 10 * self.ctx.step + 2])})

    @operator(returns=Broadcast())
    def rare(self) -> int:
        """The step, in each third step."""
        return self.ctx.step


class Taker:
    """Keeps all that it takes, by step and operator."""

    def __init__(self, ctx: RankContext) -> None:
        self.ctx = ctx
        self.took: dict[str, Any] = {}

    def _take(self, name: str, value: Any) -> None:
        self.took[f"{self.ctx.step} {name}"] = value
        self.ctx.record(**{f"{name} {self.ctx.rank}": value})

    def take(self, rows: Batch) -> None:
        """Take this rank's rows."""
        self._take("rows", rows["number"].tolist())

    @operator(version=Broadcast())
    def late(self, version: int) -> None:
        """Take a value of the step before."""
        self._take("late", version)

    @operator(notes=Broadcast())
    def change(self, notes: dict[str, Any]) -> None:
        """Change the value."""
        notes["steps"].append(-1)
        self._take("writable", bool(notes["array"].flags.writeable))

    @operator(notes=Broadcast())
    def look(self, notes: dict[str, Any]) -> None:
        """Take the same value again."""
        self._take("notes", notes["steps"])

    @operator(pieces=Broadcast(), streaming=True)
    def stream(self, pieces: Iterator[Batch]) -> None:
        """Take chunks."""
        self._take("pieces", [chunk["number"].tolist() for chunk in pieces])

    @operator(rare=Broadcast())
    def seldom(self, rare: int) -> None:
        """Take a value in each third step."""
        self._take("rare", rare)

    def snapshot(self) -> dict[str, Any]:
        """Return all that it took."""
        return {"took": self.took}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what it took."""
        self.took = state["took"]


@flow
def passing(job: Any) -> None:
    """Pass values of every kind to two ranks."""
    job.taker.take(job.maker.rows())
    job.taker.late(job.maker.version(), lag=1, initial={"version": -7})
    notes = job.maker.notes()
    job.taker.change(notes)
    job.taker.look(notes)
    job.taker.stream(job.maker.pieces())
    job.taker.seldom(job.maker.rare(every=3), every=3)


def various(name: str, base: Path) -> Job:
    """Return a job of seven steps whose values are split, broadcast, late, shared, streamed and rare."""
    return (
        Job(name, base=base, steps=7, observers=[])
        .role("maker", use="function", options={"target": f"{HERE}:Maker"}, resources={"cpu": 0.1})
        .role("taker", use="function", world_size=2, options={"target": f"{HERE}:Taker"}, resources={"cpu": 0.1})
        .flow(passing)
    )


def expected(step: int) -> dict[str, Any]:
    """Return the records of a step of `various`."""
    rows = [100 * step + n for n in range(5 + step % 3)]
    middle = (len(rows) + 1) // 2
    found: dict[str, Any] = {}
    for rank, own in enumerate((rows[:middle], rows[middle:])):
        took = {"rows": own, "late": step - 1 if step else -7, "writable": False, "notes": [step]}
        took["pieces"] = [[10 * step], [10 * step + 1, 10 * step + 2]]
        took |= {"rare": step} if step % 3 == 2 else {}
        found |= {f"{name} {rank}": value for name, value in took.items()}
    return found


class Tool:
    """A role of services only."""

    def __init__(self, ctx: RankContext) -> None:
        self.ctx = ctx

    @service
    def double(self, number: int) -> dict[str, Any]:
        """Return twice the number, and the caller."""
        by = self.ctx.called_by
        assert by is not None
        return {"answer": 2 * number, "caller": str(by.ref), "step": by.step, "theirs": os.environ.get(VARIABLE)}


class Asker:
    """Uses every method of its context in each step. Its first rank finishes the job in step `last`."""

    def __init__(self, ctx: RankContext, last: int) -> None:
        self.ctx = ctx
        self.last = last
        self.committed_steps: list[int] = []
        (ctx.tmp_dir / f"asker-{ctx.rank}").touch()

    def ask(self) -> None:
        """Use the context in one step."""
        ctx = self.ctx
        noted = dict(ctx.notes)
        ctx.notes["step"] = ctx.step
        session = ctx.session("tool")
        answer = ctx.call_and_wait("tool", "double", ctx.step, session=session)
        ctx.progress(1, 2)
        ctx.metric(loss=ctx.step)
        ctx.metric(loss=ctx.step + 1.0)
        ctx.count(rows=3)
        own = {"noted": noted, "session": session.startswith("tool/"), "own": os.environ.get(VARIABLE), **answer}
        ctx.record(**{f"asked {ctx.rank}": own})
        if ctx.step == 0:
            ctx.warn("be careful")
            whose = {"job": ctx.job, "role": ctx.role, "ranks": ctx.world_size, "seed": ctx.seed, "steps": ctx.steps}
            places = {"base": str(ctx.base), "run_dir": str(ctx.run_dir), "tmp_dir": str(ctx.tmp_dir)}
            ctx.record(**{f"who {ctx.rank}": {**whose, "rank": ctx.rank, **places}})
        if ctx.step == self.last and ctx.rank == 0:
            ctx.finish("enough")

    def committed(self, step: int) -> None:
        """Keep the step."""
        self.committed_steps.append(step)

    def teardown(self) -> None:
        """Write what was committed."""
        Path(self.ctx.run_dir, f"asker-{self.ctx.rank}.json").write_text(json.dumps(self.committed_steps))


@flow
def questions(job: Any) -> None:
    """Call the service once per step."""
    job.asker.ask(calls=[job.tool])


def asking(name: str, base: Path, last: int) -> Job:
    """Return the job. It ends soon after step `last`, long before its last step."""
    own = [{"env_vars": {VARIABLE: f"of the {role}"}} for role in ("asker", "tool")]
    asker = {"target": f"{HERE}:Asker", "kwargs": {"last": last}}
    least: dict[str, Any] = {"resources": {"cpu": 0.1}, "use": "function"}
    return (
        Job(name, base=base, steps=100_000, seed=11, observers=[])
        .role("asker", world_size=2, options=asker, runtime_env=own[0], **least)
        .role("tool", options={"target": f"{HERE}:Tool"}, runtime_env=own[1], **least)
        .flow(questions)
    )
