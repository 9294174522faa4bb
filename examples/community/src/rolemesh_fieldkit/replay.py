"""The workload `replay-buffer`: it keeps rows of the past, and returns random ones."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, Field
from rolemesh import Batch, Broadcast, OptionsError, RankContext, RolemeshError, Shard, Split, State, Workload, operator

__all__ = ["ReplayBuffer"]


def _checked(text: str) -> str:
    try:
        if np.dtype(text).base.kind in "biuf":
            return text
    except (TypeError, ValueError, SyntaxError):
        pass
    raise ValueError(f"{text!r} declares no column; write a dtype of numpy with a row's shape, e.g. (4,)float32")


class ReplayOptions(BaseModel, extra="forbid"):
    """Options of the `replay-buffer` workload."""

    columns: dict[str, Annotated[str, AfterValidator(_checked)]] = Field(
        min_length=1, description="What a row is: dtypes of numpy by name, e.g. {state: '(4,)float32'}."
    )
    capacity: int = Field(default=10_000, ge=1, description="Rows that are kept, over all ranks.")
    rows: int = Field(default=32, ge=1, description="Rows that a call of sample returns, over all ranks.")
    keep: Literal["newest", "reservoir"] = Field(
        default="newest",
        description="Once it is full: the newest rows, or a uniform sample of all rows that there ever were.",
    )


class ReplayBuffer(Workload):
    """A replay buffer whose slots are divided among its ranks.

    Every rank receives every row and keeps those of its own slots, so contents and samples do not depend on the number
    of ranks. With ``keep: reservoir`` a full buffer replaces rows by algorithm R (Vitter 1985, *Random sampling with a
    reservoir*).
    """

    Options = ReplayOptions
    options: ReplayOptions
    api_version = 1
    deterministic = True

    @classmethod
    def check(cls, options: ReplayOptions, world_size: int) -> None:
        """Check that every rank has a slot."""
        if world_size > options.capacity:
            what = f"{world_size} ranks cannot divide {options.capacity} rows"
            raise OptionsError(what, where="capacity", remedy="use fewer ranks, or a larger capacity")

    def setup(self, ctx: RankContext) -> None:
        """Allocate the memory for all rows that this rank will ever keep."""
        self.ctx = ctx
        mine = ctx.mine(self.options.capacity)
        self.first, self.last = mine.start, mine.stop
        self.columns = {name: np.dtype(text) for name, text in self.options.columns.items()}
        self.kept = {name: np.zeros(len(mine), dtype) for name, dtype in self.columns.items()}
        self.seen = 0
        self.samples = 0

    @operator(rows=Broadcast())
    def add(self, rows: Batch) -> None:
        """Keep these rows, or some of them. `rows` has the declared columns; the buffer ignores others."""
        values = {name: self._column(rows, name) for name in self.columns}
        slots = self._slots(rows.rows)
        mine = np.flatnonzero((slots >= self.first) & (slots < self.last))
        for name, column in values.items():
            self.kept[name][slots[mine] - self.first] = column[mine]  # of two rows for one slot the later stays
        self.seen += rows.rows
        self.ctx.metric(fill=min(1.0, self.seen / self.options.capacity))

    @operator(returns=Split())
    def sample(self) -> Batch:
        """Draw `rows` random rows (uniform, with replacement), and return those of this rank in the order of their
        slots.
        """
        options = self.options
        if not self.seen:
            raise RolemeshError(
                "the replay buffer is empty, so there is nothing to sample",
                where=f"role {self.ctx.role}, step {self.ctx.step}",
                remedy="let the flow call add before sample",
            )
        rng = self.ctx.rng(self.ctx.role, "sample", self.samples)
        slots = np.sort(rng.integers(0, min(self.seen, options.capacity), size=options.rows))
        self.samples += 1
        mine = slots[(slots >= self.first) & (slots < self.last)] - self.first
        self.ctx.count(sampled=len(mine))
        return Batch({name: column[mine] for name, column in self.kept.items()}, rows=len(mine))

    def snapshot(self) -> State:
        """Return the slots of this rank as shards of the whole buffer. Another number of ranks can then restore it."""
        capacity = self.options.capacity
        shards = {
            name: Shard(kept, (capacity, *kept.shape[1:]), (self.first, *(0 for _ in kept.shape[1:])))
            for name, kept in self.kept.items()
        }
        return {"kept": shards, "seen": self.seen, "samples": self.samples}

    def restore(self, state: State) -> None:
        """Restore the slots of this rank."""
        for name, shard in state["kept"].items():
            self.kept[name][:] = shard.data
        self.seen, self.samples = int(state["seen"]), int(state["samples"])

    def _slots(self, rows: int) -> NDArray[np.int64]:
        """Return the slot of each of the next `rows` rows, or a slot beyond the last for a row that is not kept."""
        capacity = self.options.capacity
        numbers = np.arange(self.seen, self.seen + rows)
        if self.options.keep == "newest":
            return numbers % capacity
        drawn = self.ctx.rng(self.ctx.role, "keep", self.seen).integers(0, numbers + 1)
        return np.where(numbers < capacity, numbers, drawn)

    def _column(self, rows: Batch, name: str) -> NDArray[Any]:
        """Return a column as declared. Raises `RolemeshError` if it is missing or has another shape."""
        declared = self.columns[name]
        if name in rows:
            column = np.asarray(rows[name], declared.base)
            if column.shape[1:] == declared.shape:
                return column
        got = f"rows of shape {column.shape[1:]}" if name in rows else f"the columns {', '.join(rows)}"
        raise RolemeshError(
            f"add() needs the column {name!r} with rows of shape {declared.shape}, and got {got}",
            where=f"role {self.ctx.role}, step {self.ctx.step}",
            remedy="declare in options.columns what the producer returns",
        )
