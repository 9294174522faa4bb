"""A small job for engines and backends: a role makes numbers, and two ranks of another one add them up."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rolemesh import Batch, Job, RankContext, flow

__all__ = ["counting", "summing"]

HERE = "rolemesh_testing.engines.job"


def numbers(ctx: RankContext[Any], pause_s: float = 0.0, fail_at: int = -1) -> Batch:
    """Four numbers a step."""
    time.sleep(pause_s)
    if ctx.step == fail_at:
        raise ValueError("it was asked to fail")
    return Batch({"number": [4 * ctx.step + n for n in range(4)]})


class Sum:
    """Adds up what reaches this rank."""

    def __init__(self, ctx: RankContext[Any]) -> None:
        self.ctx = ctx
        self.total = 0

    def add(self, numbers: Batch) -> None:
        """Add this rank's part."""
        self.total += sum(numbers["number"])
        self.ctx.count(total=self.total)

    def snapshot(self) -> dict[str, int]:
        """The sum."""
        return {"total": self.total}

    def restore(self, state: dict[str, int]) -> None:
        """Go on from it."""
        self.total = state["total"]


@flow
def counting(job: Any) -> None:
    """What happens in a step."""
    job.sink.add(job.source.numbers())


def summing(name: str, base: Path, *, steps: int = 10, pause_s: float = 0.0, fail_at: int = -1) -> Job:
    """The job, with a source that takes `pause_s` for a step and raises at step `fail_at`."""
    kwargs = {"pause_s": pause_s, "fail_at": fail_at}
    return (
        Job(name, base=base, steps=steps, observers=[])
        .role("source", use="function", options={"target": f"{HERE}:numbers", "kwargs": kwargs}, resources={"cpu": 0.1})
        .role("sink", use="function", world_size=2, options={"target": f"{HERE}:Sum"}, resources={"cpu": 0.1})
        .flow(counting)
    )
