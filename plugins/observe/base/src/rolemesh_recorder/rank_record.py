"""The recorder in a rank: a thread writes what the rank's main thread hands over, so that no disk delays a step."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

from rolemesh.graph.logical import OpCall
from rolemesh_durable.api.extensions import Rank, RankExtension, Span, edges_of, totals_of
from rolemesh_recorder.accounting import GAP_NS, Accounts, Spans, Wall
from rolemesh_recorder.lines import Head, Life, Line, rank_folder
from rolemesh_recorder.options import RecorderOptions
from rolemesh_recorder.parts import Parts
from rolemesh_recorder.rows import KeptRows, Sampling

__all__ = ["RankRecord"]

LOG = logging.getLogger(__name__)
PERIOD_S = 0.5
"""Seconds between two writes. A kill loses at most what this period recorded."""
MOST_WAITING = 10_000
"""Lines that wait while the disk does not take any; the oldest ones are dropped first."""


class RankRecord(RankExtension):
    """Records one process of a rank."""

    def __init__(
        self,
        rank: Rank,
        options: RecorderOptions,
        node: str,
        pid: int,
        times: Mapping[str, int],
        traffic: Callable[[], Mapping[int, tuple[int, int]]] = dict,
    ) -> None:
        """`times` has the ns of the monotonic clock at which ``starting`` and ``setup`` began, by name. `traffic`
        returns the sums of `Transport.traffic`."""
        self._traffic = traffic
        ctx = rank.ctx
        self._wall = wall = Wall(time.time_ns(), time.monotonic_ns())
        self._rank, self._times = rank, dict(times)
        self._spans = Spans(wall)
        self._accounts: Accounts | None = None
        begun = wall(min(times.values()))
        head = Head(ctx.role, ctx.rank, ctx.generation, pid, node, begun)
        self._writer = Writer(lambda: Parts(rank_folder(ctx.run_dir, ctx.role, ctx.rank), head, _bytes(options.max_mb)))
        self._kept = KeptRows(ctx.run_dir, ctx.role, ctx.rank, _bytes(options.rows_mb))
        self._rows = {label: Sampling(share) for label, share in options.rows.items()}
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._over = threading.Event()

    def wrap(self, op: OpCall, method: Callable[..., object]) -> Callable[..., object]:
        """Keep a share of the rows of operators that the options name."""
        sampling = self._rows.get(op.label)
        if sampling is None:
            return method
        return sampling.around(op, method, lambda: self._rank.ctx.step, self._kept.add)

    def opened(self, resume: int) -> None:
        """Account for the time before the first step, and begin to record."""
        now = time.monotonic_ns()
        self._times["end"] = now
        marks = sorted(self._times.items(), key=lambda mark: mark[1])
        for (what, began), (_, ended) in pairwise(marks):
            self._writer.add(Life(what, self._wall(began), (ended - began) // 1000))
        totals, edges = partial(totals_of, self._rank), partial(edges_of, self._rank)
        self._accounts = Accounts(self._wall, self._spans, totals, edges, now, resume, self._traffic)
        self._thread.start()

    def spent(self, span: Span) -> None:
        """Hand the span over to the thread."""
        for line in self._spans.take(span):
            self._writer.add(line)

    def close(self) -> None:
        """Write what is left. The disk gets a second for it."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def _work(self) -> None:
        while not self._over.wait(PERIOD_S):
            now = time.monotonic_ns()
            self._write(now, now - GAP_NS)
        now = time.monotonic_ns()
        self._write(now, now)
        self._writer.close()

    def _write(self, now: int, before: int) -> None:
        assert self._accounts is not None
        for line in self._spans.rest(before):
            self._writer.add(line)
        self._writer.add(self._accounts.next(now))
        self._writer.write()
        self._kept.write()


class Writer:
    """Lines on their way to disk. If the disk refuses them, they wait, and the log says so once."""

    def __init__(self, make: Callable[[], Parts]) -> None:
        """`make` opens the record."""
        self._make = make
        self._parts: Parts | None = None
        self._lines: deque[Line] = deque(maxlen=MOST_WAITING)
        self._failing, self._dropped = False, 0

    def add(self, line: Line) -> None:
        """Add a line, from any thread."""
        self._dropped += len(self._lines) == MOST_WAITING
        self._lines.append(line)

    def write(self) -> None:
        """Write the lines that wait, from one thread only."""
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        try:
            if self._parts is None:
                self._parts = self._make()
            self._parts.append(lines)
            lines = []
            self._parts.tidy()
            if self._failing:  # the disk may have had no room for the first warning either
                LOG.warning("this rank's record is written again; %d lines are missing", self._dropped)
            self._failing, self._dropped = False, 0
        except OSError as error:
            self._put_back(lines)
            if not self._failing:
                LOG.warning("this rank's record cannot be written: %s; the recorder tries again", error)
            self._failing = True

    def close(self) -> None:
        """Close the record."""
        if self._parts is not None:
            self._parts.close()

    def _put_back(self, lines: Sequence[Line]) -> None:
        over = max(0, len(lines) - (MOST_WAITING - len(self._lines)))
        self._dropped += over
        self._lines.extendleft(reversed(lines[over:]))


def _bytes(mb: float) -> int:
    return int(mb * 1_000_000)
