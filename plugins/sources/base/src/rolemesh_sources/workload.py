"""The workload `source`: its ranks read records from a source. Each record is in exactly one value of the job."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from pydantic import BaseModel, Field

from rolemesh.api.batch import Batch, Gathered, Shard
from rolemesh.api.partition import Split
from rolemesh.api.workload import RankContext, State, Workload, operator
from rolemesh.errors import OptionsError, nearest
from rolemesh.kinds.offered import need
from rolemesh_sources import Offset, Reader, Source, SourceError

if TYPE_CHECKING:
    from rolemesh.job.prepared import CheckedJob

__all__ = ["SourceOptions", "SourceWorkload"]

LOOK_S = (0.001, 0.05)
"""Seconds between two looks at the source: at first, and at most."""
AGAIN_S = 60.0
"""Seconds that a source may take to find records again that it has given before."""
LONG_S = 30.0
"""Seconds without a new record after which the rank logs that its step waits."""
LAG_S = 1.0
UNACKNOWLEDGED = 1024
STATE_BYTES = 256
"""Least length of the state in bytes. Lengths are powers of two: a length that stays the same costs less to store."""
NOTE = "read"


class SourceOptions(BaseModel, extra="forbid"):
    """The source, and the number of records per step."""

    source: str = Field(description="Name of a source under plugins.sources; name#2 for the second one of a name.")
    rows: int = Field(default=32, ge=1, description="Maximum number of records that a rank takes in a step.")
    wait_s: float | None = Field(
        default=1.0,
        ge=0,
        description="Seconds after the first record of a step (with several ranks: after the step's start) at which it "
        "continues with the records so far; null: it waits for all rows. A rank without a partition never waits.",
    )
    columns: list[str] | None = Field(
        default=None, description="The columns of the batches. Default: the fields of the step's records."
    )


class SourceWorkload(Workload):
    """Reads a source, listed under ``plugins.sources``: ``next()`` returns a batch of its newest unread records."""

    Options = SourceOptions
    options: SourceOptions

    @classmethod
    def check_flow(cls, options: SourceOptions, role: str, job: CheckedJob) -> None:
        """See `Workload.check_flow`: the job file must list the source, and what it needs must be installed."""
        listed = [name for kind, name in job.declared if kind == "sources"]
        if options.source not in listed:
            what = f"the job file has no source {options.source!r}"
            remedy = (
                nearest(options.source, listed)
                if listed
                else f"write plugins: {{sources: [{{use: {options.source}}}]}}"
            )
            raise OptionsError(what, where="source", remedy=remedy)
        source = job.declared["sources", options.source]
        if source.cls.needs:
            need("sources", source.record.name, source.cls.needs)

    def setup(self, ctx: RankContext) -> None:
        """See `Workload.setup`."""
        self._ctx = ctx
        self._source: Source = ctx.plugins["sources", self.options.source]()
        self._source.open(Reader(ctx.job, ctx.role, ctx.rank, ctx.world_size, str(ctx.base)))
        self._position: dict[str, Offset] = {}
        self._columns = list(self.options.columns or ())
        self._read: deque[tuple[int, dict[str, Offset]]] = deque()
        self._begun, self._first, self._looks, self._lag_at = False, 0, 0, 0.0
        self._warned: set[str] = set()

    @operator(returns=Split())
    async def next(self) -> Batch:
        """Return the next records, one column per field. Behind the source's end the batch has no rows."""
        ctx = self._ctx
        taken, ended, begun = ctx.notes.get(NOTE) or ([], None, False)
        if begun and not self._begun:
            self._begun = True
            self._source.resume(self._position)
        rows = await self._again(taken)
        if ended is None:
            ended = await self._collect(taken, rows)
            self._begun = self._begun or bool(taken)
            ctx.notes[NOTE] = (taken, ended, self._begun)
        self._position = _moved(self._position, taken)
        self._read.append((ctx.step, {partition: offset for partition, _, offset in taken}))
        if len(self._read) > UNACKNOWLEDGED:  # whoever acknowledges less acknowledges late
            (_, older), (step, newer) = self._read.popleft(), self._read.popleft()
            self._read.appendleft((step, older | newer))
        ctx.count(records=len(rows))
        ctx.metric(ended=float(ended))
        if ended and ctx.world_size == 1:
            ctx.finish(f"the source {self.options.source} has ended")
        if time.monotonic() >= self._lag_at + LAG_S:
            self._lag_at = time.monotonic()
            if (lag := self._source.lag(self._position)) is not None:
                ctx.metric(lag=lag)
        return self._batch(rows)

    async def _collect(self, taken: list[Any], rows: list[Mapping[str, Any]]) -> bool:
        """Add new records to `rows`, and (partition, count, offset behind them) to `taken`. True: they are the last.

        Note where the job begins before the first record is there: a rank that starts again must not begin later.
        """
        source, most, wait_s = self._source, self.options.rows, self.options.wait_s
        position, pause_s = _moved(self._position, taken), LOOK_S[0]
        began = time.monotonic()
        since = began if self._ctx.world_size > 1 else None
        while True:
            before = len(taken)
            for partition in self._own(position):
                offset = position.get(partition)
                got = source.read(partition, offset, most - len(rows))
                if got.rows or got.offset != offset:
                    taken.append((partition, len(got.rows), got.offset))
                    position = _moved(position, taken[-1:])
                    rows += got.rows
                if len(rows) >= most:
                    return source.ended(position)
            if not self._begun and (taken or not source.waiting()):
                self._begun = True
                self._ctx.notes[NOTE] = (taken, None, True)
            now = time.monotonic()
            since = now if since is None and rows else since
            if len(taken) > before:
                continue
            if source.ended(position):
                return True
            if (wait_s is not None and since is not None and now >= since + wait_s) or self._left_out(position):
                return False
            if now >= began + LONG_S:
                self._warn("waits", f"step {self._ctx.step} has {len(rows)} of {most} records and waits for more")
            self._looks += 1
            if self._ctx.progress(self._looks):  # nothing to read is no hang, and holds nobody up
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_S[1])

    def _left_out(self, position: Mapping[str, Offset]) -> bool:
        """Whether all partitions belong to other ranks."""
        ctx, there = self._ctx, self._source.partitions()
        if position or not there or any(self._source.rank_of(p, ctx.world_size) == ctx.rank for p in there):
            return False
        self._warn(
            "left out",
            f"this rank has nothing to read: partitions: {len(there)}, ranks: {ctx.world_size}; "
            f"give role {ctx.role} fewer ranks, or the source more partitions",
        )
        return True

    def _warn(self, kind: str, text: str) -> None:
        """Write `text` to the rank's log, once for each `kind`."""
        if kind not in self._warned:
            self._warned.add(kind)
            self._ctx.log.warning("source %s: %s", self.options.source, text)

    def _own(self, position: Mapping[str, Offset]) -> list[str]:
        """The rank's partitions. Each call begins with another one."""
        ctx, source = self._ctx, self._source
        mine = {p for p in source.partitions() if source.rank_of(p, ctx.world_size) == ctx.rank}
        found = sorted(mine | position.keys())
        self._first += 1
        first = self._first % len(found) if found else 0
        return found[first:] + found[:first]

    async def _again(self, taken: list[Any]) -> list[Mapping[str, Any]]:
        """Read the records again that the rank had taken before a restart."""
        rows: list[Mapping[str, Any]] = []
        position = self._position
        for partition, count, after in taken:
            offset, left = position.get(partition), count
            until, pause_s = time.monotonic() + AGAIN_S, LOOK_S[0]
            while left:
                got = self._source.read(partition, offset, left)
                rows += got.rows
                offset, left = got.offset, left - len(got.rows)
                if left and not got.rows:
                    self._looks += 1
                    self._ctx.progress(self._looks)
                    if self._source.waiting():
                        until = time.monotonic() + AGAIN_S
                    elif time.monotonic() > until:
                        what = f"{left} records of partition {partition!r} at {offset!r} that were there are gone"
                        remedy = "let the source keep its records until they are in a checkpoint"
                        raise SourceError(what, where=f"source {self.options.source}", remedy=remedy)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, LOOK_S[1])
            position = _moved(position, [(partition, count, after)])
        return rows

    def _batch(self, rows: list[Mapping[str, Any]]) -> Batch:
        if rows and not self.options.columns:
            self._columns = list(dict.fromkeys(name for row in rows for name in row))
        return Batch({name: [row.get(name) for row in rows] for name in self._columns}, rows=len(rows))

    def persisted(self, step: int) -> None:
        """See `Workload.persisted`. Tell the source which records are in a checkpoint."""
        position: dict[str, Offset] = {}
        while self._read and self._read[0][0] <= step:
            position |= self._read.popleft()[1]
        if position:
            self._source.acknowledge({p: offset for p, offset in position.items() if offset is not None})

    def snapshot(self) -> State:
        """See `Workload.snapshot`. The state is the offsets, which the ranks of another layout divide."""
        found = Gathered()
        if self._begun:
            text = json.dumps([self._position, self._columns], sort_keys=True).encode()
            size = max(STATE_BYTES, 1 << (len(text) - 1).bit_length())
            data = np.frombuffer(text.ljust(size), np.uint8)
            found[f"rank-{self._ctx.rank}"] = Shard(data, data.shape, (0,))
        return {"read": found}

    def restore(self, state: State) -> None:
        """See `Workload.restore`."""
        for each in state["read"].values():
            data = each.data if isinstance(each, Shard) else each
            position, columns = json.loads(bytes(cast("Any", np.asarray(data))))
            self._columns = self._columns or columns
            ranks = self._ctx.world_size
            own = (p for p in position if self._source.rank_of(p, ranks) == self._ctx.rank)
            self._position |= {p: position[p] for p in own}
        self._begun = bool(state["read"])  # without: no rank of the job had seen the source yet
        if self._begun:
            self._source.resume(self._position)

    def teardown(self) -> None:
        """See `Workload.teardown`."""
        self._source.close()


def _moved(position: Mapping[str, Offset], taken: list[Any]) -> dict[str, Offset]:
    """`position` after the records in `taken`, without the partitions that have ended."""
    moved = {**position, **{partition: offset for partition, _, offset in taken}}
    return {partition: offset for partition, offset in moved.items() if offset is not None}
