"""A rank's times and its workload's reports, gathered into lines of metrics for the agent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import Any, Protocol

import msgspec

from rolemesh.api.workload import RankContext
from rolemesh_durable.protocol.messages import RankMetrics, Watermarks
from rolemesh_durable.protocol.metrics.line_cuts import Cuts, line_end
from rolemesh_durable.protocol.rank.page import ADDED, IDLE
from rolemesh_durable.protocol.rank.span import LONG_NS
from rolemesh_durable.rank.port import port_of
from rolemesh_runtime.metrics import Metrics, collect

__all__ = ["LineLog", "Meter"]

FLUSH_NS = 100_000_000
"""Minimum nanoseconds between two messages with lines."""


encode = msgspec.msgpack.Encoder().encode


class LineLog(Protocol):
    """The store that keeps lines for the rank's next generation."""

    def line(self, step: int, encoded: bytes, *, partial: bool = False) -> None:
        """Keep an encoded line that ends with `step`, or with `partial` the part of a line up to `step`."""


class Meter:
    """Gathers a rank's lines: they end at the steps that `cuts` names, and at the last step.

    `computing`, `waiting` and `blocked` are nanoseconds in the current line, `busy` is the computing time of all lines.
    `idling` and `saving` are the rank's nanoseconds in waits for grants and in snapshots. `began` is the time at which
    the present operator began, 0 for none, and `ended` that at which the last one ended. `around` has the phase, edge
    and begin of the wait in which the rank served calls last, or takes a snapshot.
    The loop and the ports add to them.
    """

    __slots__ = (
        "_ctx", "_cuts", "_end", "_first", "_kept", "_lines", "_log", "_logged", "_part", "_report", "_sent_ns",
        "_spent", "_step", "around", "began", "blocked", "busy", "computing", "ended", "idling", "saving", "served",
        "waiting",
    )  # fmt: skip

    def __init__(
        self, ctx: RankContext, cuts: Cuts, report: Callable[[RankMetrics], None], log: LineLog | None = None
    ) -> None:
        """`cuts` is empty until the master has sent them: no step runs before.

        `report` takes the lines for the agent. With `log`, the meter writes them there before each snapshot.
        """
        self.computing = self.waiting = self.blocked = self.busy = self.idling = self.saving = self.served = 0
        self.began, self.ended, self.around = 0, 0, (IDLE, -1, 0)
        self._spent: Callable[[int, int, int, int], None] | None = None
        self._log = log
        self._logged = -1
        """Lines up to this step are in the log."""
        self._ctx = ctx
        self._cuts = cuts
        self._report = report
        self._lines: list[Metrics] = []
        """The lines that have not been sent."""
        self._kept: deque[Metrics] = deque()
        """The lines that have been sent and are not known to be on disk."""
        self._sent_ns = monotonic_ns()
        self._first = -1
        """The first step of the current line; -1 if it has none yet."""
        self._end = -1
        """The last step of the current line, if it has a first one."""
        self._step = -1
        """The last finished step."""
        self._part = Metrics(ctx.role, -1, 0, 1, [])
        """The reports for the current line."""

    def cut(self, cuts: Cuts) -> None:
        """Lines end at the steps that `cuts` names. The current line may already end with the last finished step."""
        if cuts != self._cuts:
            self._cuts = cuts
            self._go_on()

    def _go_on(self) -> None:
        if self._first >= 0 and self._cuts:
            self._end = line_end(self._cuts, self._first)
            if self._end <= self._step:
                self._line(self._step)

    def begin(self) -> int:
        """Note that an operator begins, and return the time."""
        self.began = monotonic_ns()
        return self.began

    def computed(self, ns: int, ended: int) -> None:
        """Count `ns` in an operator that ended at `ended`."""
        self.began = 0
        self.computing += ns
        self.busy += ns
        self.ended = ended

    def attend(self, spent: Callable[[int, int, int, int], None]) -> None:
        """Call ``spent(phase, edge, began, ended)`` for each span: see `Span`."""
        self._spent = spent

    def span(self, phase: int, edge: int, began: int, ended: int) -> None:
        """The rank was in `phase` from `began` to `ended`. Short ones are no spans, except in brief phases."""
        if self._spent is not None and (ended - began >= LONG_NS or (phase in ADDED and ADDED[phase].brief)):
            self._spent(phase, edge, began, ended)

    def within(self, around: tuple[int, int, int]) -> tuple[int, int, int]:
        """Set `around`, and return the former one."""
        before, self.around = self.around, around
        return before

    def record(self, values: Mapping[str, Any]) -> None:
        """Add JSON values to the records of the present line."""
        self._part.records.update(values)

    def restart(self) -> None:
        """Forget the times of the present line."""
        self.computing = self.waiting = self.blocked = 0

    def collect(self, label: str) -> None:
        """Collect the workload's reports since the last call, for operator call `label`."""
        collect(port_of(self._ctx), label, self._part)

    def aged(self, steps: int) -> None:
        """Record that the current call takes a value that is `steps` old, of those that it might have taken."""
        self._ctx.metric(staleness=steps)

    def finished(self, step: int, now_ns: int) -> None:
        """Count step `step`; `now_ns` is the present `monotonic_ns`, or a little before it."""
        if self._first < 0:
            self._first = step
            self._end = line_end(self._cuts, step)
        self._step = step
        if step >= self._end:
            self._line(step)
        if now_ns - self._sent_ns >= FLUSH_NS:
            self._send(now_ns)

    def log_lines(self, step: int) -> None:
        """Write the lines before the snapshot of `step` to the log, from which a restored rank sends them.

        The log also gets the current line as far as it is gathered.
        """
        if self._log is None:
            return
        for line in (*self._kept, *self._lines):
            if self._logged < line.step <= step:
                self._log.line(line.step, encode(line))
        if self._first < 0:
            self._logged = step
            return
        # The master may still end the current line at one of its steps: the log does not have that line yet.
        self._logged = max(self._logged, self._first - 1)
        self._log.line(step, encode(self._gathered(step)), partial=True)

    def resume(self, partial: Metrics) -> None:
        """Continue the line that a former generation had begun."""
        self.computing, self.waiting, self.blocked = (round(seconds * 1e9) for seconds in partial.times)
        self._first = partial.step - partial.steps + 1
        self._step = partial.step
        self._part = partial
        self._go_on()

    def resend(self, lines: Sequence[Metrics]) -> None:
        """Send lines of former generations again; they are in the log."""
        if lines:
            self._kept += lines
            self._logged = max(self._logged, lines[-1].step)
            self._tell(tuple(lines))

    def _gathered(self, step: int) -> Metrics:
        times = [self.computing * 1e-9, self.waiting * 1e-9, self.blocked * 1e-9]
        part, steps = self._part, step - self._first + 1
        return Metrics(part.role, step, steps, 1, times, part.means, part.sums, part.records)

    def _line(self, step: int) -> None:
        self._lines.append(self._gathered(step))
        self._part = Metrics(self._part.role, -1, 0, 1, [])
        self.computing = self.waiting = self.blocked = 0
        self._first = -1

    def idle(self) -> bool:
        """Send the lines that are due, because the rank is about to block. Return True if more lines wait."""
        if self._lines and (now := monotonic_ns()) - self._sent_ns >= FLUSH_NS:
            self._send(now)
        return bool(self._lines)

    def advanced(self, advance: Watermarks) -> None:
        """Cut lines where the master says so, and forget those that are on disk."""
        self.cut(advance.cuts)
        self.published(advance.published)

    def published(self, step: int) -> None:
        """Forget the lines up to `step`, which are on disk."""
        while self._kept and self._kept[0].step <= step:
            self._kept.popleft()

    def say_again(self) -> None:
        """Send all lines again: the agent that received them is gone."""
        if self._kept:
            self._tell(tuple(self._kept))
        self.flush()

    def end(self, step: int) -> None:
        """End the current line with `step`, because it is the last step or all ranks wait after it."""
        if self._first >= 0:
            self._line(step)

    def close(self, step: int) -> None:
        """Send everything, because `step` was the last one."""
        self.end(step)
        self.flush()

    def flush(self) -> None:
        """Send all lines that have not been sent."""
        self._send(monotonic_ns())

    def log_again(self) -> None:
        """Write the lines that are not known to be on disk again, and send them: the files of the log are gone."""
        self._logged = -1
        self.flush()

    def _send(self, now_ns: int) -> None:
        self._sent_ns = now_ns
        if self._lines:
            lines, self._lines = tuple(self._lines), []
            self._kept += lines
            self._tell(lines)

    def _tell(self, lines: tuple[Metrics, ...]) -> None:
        ctx = self._ctx
        self._report(RankMetrics(ctx.role, ctx.rank, ctx.generation, lines))
