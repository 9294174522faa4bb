"""Where a rank's time goes and what its workload reports, gathered into lines of metrics for the agent."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from rolemesh.protocol.messages import Metrics, RankMetrics
from rolemesh.workload import RankContext

__all__ = ["Meter"]

FLUSH_NS = 100_000_000
"""Lines are sent together, at most this often."""
MAX_LINES = 4096


class Meter:
    """One line per `every` steps, and one for what is left at the end.

    `computing`, `waiting` and `blocked` are nanoseconds in the present line; the loop and the ports add to them.
    """

    __slots__ = (
        "_ctx",
        "_every",
        "_first",
        "_lines",
        "_means",
        "_records",
        "_report",
        "_sent_ns",
        "_sums",
        "blocked",
        "computing",
        "waiting",
    )

    def __init__(self, ctx: RankContext[Any], every: int, report: Callable[[RankMetrics], None]) -> None:
        self.computing = self.waiting = self.blocked = 0
        self._ctx = ctx
        self._every = every
        self._report = report
        self._lines: list[Metrics] = []
        self._sent_ns = monotonic_ns()
        self._first = -1
        self._clear()

    def _clear(self) -> None:
        self._means: dict[str, dict[str, list[float]]] = {}
        self._sums: dict[str, dict[str, float]] = {}
        self._records: dict[str, Any] = {}

    def collect(self, label: str) -> None:
        """Take what the workload has reported since the last call, in the name of operator call `label`."""
        ctx = self._ctx
        if ctx._means:
            means = self._means.setdefault(label, {})
            for name, (amount, count) in ctx._means.items():
                slot = means.setdefault(name, [0.0, 0.0])
                slot[0] += amount
                slot[1] += count
            ctx._means = {}
        if ctx._sums:
            sums = self._sums.setdefault(label, {})
            for name, amount in ctx._sums.items():
                sums[name] = sums.get(name, 0.0) + amount
            ctx._sums = {}
        if ctx._records:
            self._records.update(ctx._records)
            ctx._records = {}

    def finished(self, step: int, now_ns: int) -> None:
        """Step `step` is over; `now_ns` is the present `monotonic_ns`, or a little before it."""
        if self._first < 0:
            self._first = step
        if (step + 1) % self._every == 0:
            self._line(step)
        if now_ns - self._sent_ns >= FLUSH_NS or len(self._lines) >= MAX_LINES:
            self._send(now_ns)

    def _line(self, step: int) -> None:
        times = [self.computing * 1e-9, self.waiting * 1e-9, self.blocked * 1e-9]
        steps = step - self._first + 1
        ctx = self._ctx
        self._lines.append(Metrics(ctx.role, step, steps, 1, times, self._means, self._sums, self._records))
        self.computing = self.waiting = self.blocked = 0
        self._first = -1
        if self._means or self._sums or self._records:
            self._clear()

    def idle(self) -> None:
        """The rank is about to block: send what is due."""
        if self._lines and (now := monotonic_ns()) - self._sent_ns >= FLUSH_NS:
            self._send(now)

    def close(self, step: int) -> None:
        """`step` was the last one: send everything."""
        if self._first >= 0:
            self._line(step)
        self._send(monotonic_ns())

    def _send(self, now_ns: int) -> None:
        self._sent_ns = now_ns
        if self._lines:
            ctx, lines = self._ctx, tuple(self._lines)
            self._lines.clear()
            self._report(RankMetrics(ctx.role, ctx.rank, ctx.generation, lines))
