"""Small jobs for engines and backends: one adds up numbers, the other uses every method of a rank's context."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rolemesh import Batch, Job, RankContext, flow, service

__all__ = ["asking", "counting", "summing"]

HERE = "rolemesh_testing.engines.job"


def numbers(ctx: RankContext, pause_s: float = 0.0, fail_at: int = -1) -> Batch:
    """Makes four numbers per step."""
    time.sleep(pause_s)
    if ctx.step == fail_at:
        raise ValueError("it was asked to fail")
    return Batch({"number": [4 * ctx.step + n for n in range(4)]})


class Sum:
    """Adds up the numbers that this rank receives."""

    def __init__(self, ctx: RankContext) -> None:
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


@flow
def counting(job: Any) -> None:
    """The flow of one step."""
    job.sink.add(job.source.numbers())


def summing(name: str, base: Path, *, steps: int = 10, pause_s: float = 0.0, fail_at: int = -1) -> Job:
    """Return the job. Its source takes `pause_s` seconds per step and raises at step `fail_at`."""
    kwargs = {"pause_s": pause_s, "fail_at": fail_at}
    return (
        Job(name, base=base, steps=steps, observers=[])
        .role("source", use="function", options={"target": f"{HERE}:numbers", "kwargs": kwargs}, resources={"cpu": 0.1})
        .role("sink", use="function", world_size=2, options={"target": f"{HERE}:Sum"}, resources={"cpu": 0.1})
        .flow(counting)
    )


class Tool:
    """A role of services only."""

    def __init__(self, ctx: RankContext) -> None:
        self.ctx = ctx

    @service
    def double(self, number: int) -> dict[str, Any]:
        """Return twice the number, and the caller."""
        by = self.ctx.called_by
        assert by is not None
        return {"answer": 2 * number, "caller": str(by.ref), "step": by.step}


class Asker:
    """Uses every method of its context in each step, and finishes the job in step `last`."""

    def __init__(self, ctx: RankContext, last: int) -> None:
        self.ctx = ctx
        self.last = last

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
        ctx.record(asked={"noted": noted, "session": session.startswith("tool/"), **answer})
        if ctx.step == 0:
            ctx.warn("be careful")
        if ctx.step == self.last:
            ctx.finish("enough")


@flow
def questions(job: Any) -> None:
    """Call the service once per step."""
    job.asker.ask(calls=[job.tool])


def asking(name: str, base: Path, last: int) -> Job:
    """Return the job. It ends soon after step `last`, long before its last step."""
    options = {"target": f"{HERE}:Asker", "kwargs": {"last": last}}
    return (
        Job(name, base=base, steps=100_000, observers=[])
        .role("asker", use="function", options=options, resources={"cpu": 0.1})
        .role("tool", use="function", options={"target": f"{HERE}:Tool"}, resources={"cpu": 0.1})
        .flow(questions)
    )
