"""A workload that does everything right, and ones that each do one thing wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from rolemesh import Batch, OptionsError, RankContext, Split, State, Workload, operator


class Counter(Workload):
    """Adds up numbers, and gives random ones that depend on the seed and the row only."""

    class Options(BaseModel, extra="forbid"):
        start: int = Field(default=0, ge=0, description="Where the sum begins.")
        rows: int = Field(default=4, description="Rows per step.")

    deterministic = True

    @classmethod
    def check(cls, options: Any, world_size: int) -> None:
        if options.rows > 100:
            raise OptionsError("too many rows", where="rows", remedy="give at most 100")

    def setup(self, ctx: RankContext) -> None:
        self.ctx = ctx
        self.total = np.full(2, float(self.options.start))

    @operator(rows=Split(), returns=Split())
    def noisy(self, rows: Batch) -> Batch:
        """The numbers of `rows`, each with noise."""
        noise = [float(self.ctx.rng("row", int(index)).standard_normal()) for index in rows["index"]]
        return rows | {"number": np.float64(noise)}

    @operator(rows=Split())
    def add(self, rows: Batch) -> None:
        """Add the numbers of `rows` to the sum."""
        self.total = self.total + float(np.sum(rows["number"]))

    @operator(rows=Split(), returns=Split(), streaming=True)
    def squared(self, rows: Iterator[Batch]) -> Iterator[Batch]:
        """The squares, chunk by chunk."""
        for chunk in rows:
            yield Batch({"number": np.asarray(chunk["number"]) ** 2})

    def snapshot(self) -> State:
        return {"total": self.total}

    def restore(self, state: State) -> None:
        self.total = np.array(state["total"])
