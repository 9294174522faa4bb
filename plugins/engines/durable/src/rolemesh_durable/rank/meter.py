"""Where a rank's time goes and what its workload reports, gathered into lines of metrics for the agent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import Any, Protocol

import msgspec

from rolemesh.api.workload import RankContext
from rolemesh.runs.metrics import Metrics, collect
from rolemesh_durable.protocol.blocks import Block
from rolemesh_durable.protocol.item_reports import ItemReports, reports_record
from rolemesh_durable.protocol.messages import RankMetrics
from rolemesh_durable.rank.port import port_of

__all__ = ["LineLog", "Meter"]

FLUSH_NS = 100_000_000
"""Lines are sent together, as blocks, at most this often."""


encode = msgspec.msgpack.Encoder().encode


class LineLog(Protocol):
    """Where lines are kept for the rank's next generation."""

    def line(self, step: int, encoded: bytes, *, partial: bool = False) -> None:
        """Keep an encoded `Block` that ends with `step`; or (`partial`) `Metrics`, which go on after it."""


class Meter:
    """One line per `every` steps, and one for what is left at the end.

    `computing`, `waiting` and `blocked` are nanoseconds in the present line, `busy` what has been computed in all; the
    loop and the ports add to them.
    """

    __slots__ = (
        "_blocks",
        "_ctx",
        "_every",
        "_first",
        "_kept",
        "_log",
        "_logged",
        "_part",
        "_report",
        "_sent_ns",
        "blocked",
        "busy",
        "computing",
        "waiting",
    )

    def __init__(
        self, ctx: RankContext[Any], every: int, report: Callable[[RankMetrics], None], log: LineLog | None = None
    ) -> None:
        """`report` takes the lines for the agent. With `log`, they are written there when a snapshot follows."""
        self.computing = self.waiting = self.blocked = self.busy = 0
        self._log = log
        self._logged = -1
        """Lines up to this step are in the log."""
        self._ctx = ctx
        self._every = every
        self._report = report
        self._blocks: list[Block] = []
        """What has not been sent. The last one grows."""
        self._kept: deque[Block] = deque()
        """What has been sent and is not known to be on disk."""
        self._sent_ns = monotonic_ns()
        self._first = -1
        self._part = Metrics(ctx.role, -1, 0, 1, [])
        """What has been reported for the present line."""

    def waited(self, ns: int) -> None:
        """Count `ns` as time in which the rank waited."""
        self.waiting += ns

    def record(self, values: Mapping[str, Any]) -> None:
        """Add JSON values to the records of the present line."""
        self._part.records.update(values)

    def restart(self) -> None:
        """Forget the times of the present line."""
        self.computing = self.waiting = self.blocked = 0

    def collect(self, label: str) -> None:
        """Take what the workload has reported since the last call, in the name of operator call `label`."""
        collect(port_of(self._ctx), label, self._part)

    def made(self, label: str, step: int, items: int, reports: ItemReports) -> None:
        """Add the reports of the items that this rank has made in call `label` of `step` to the current line.

        `items` is the number of items that all ranks of the role make in this step.
        """
        self._part.records.update(reports_record(label, step, self._ctx.rank, items, reports))

    def aged(self, steps: int) -> None:
        """The present call takes a value that is so many steps old, of those that it might have taken."""
        self._ctx.metric(staleness=steps)

    def finished(self, step: int, now_ns: int) -> None:
        """Step `step` is over; `now_ns` is the present `monotonic_ns`, or a little before it."""
        if self._first < 0:
            self._first = step
        if (step + 1) % self._every == 0:
            self._line(step)
        if now_ns - self._sent_ns >= FLUSH_NS:
            self._send(now_ns)

    def boundary(self, step: int) -> None:
        """A snapshot of `step` follows: who is restored from it sends the lines before it from the log.

        What has been gathered for the present line goes there too.
        """
        if self._log is None:
            return
        for block in (*self._kept, *self._blocks):
            if block.last > self._logged and (new := block.between(self._logged, step)) is not None:
                self._log.line(new.last, encode(new))
        self._logged = step
        if self._first >= 0:
            self._log.line(step, encode(self._gathered(step)), partial=True)

    def resume(self, partial: Metrics) -> None:
        """Go on with the line that a former generation had begun."""
        self.computing, self.waiting, self.blocked = (round(seconds * 1e9) for seconds in partial.times)
        self._first = partial.step - partial.steps + 1
        self._part = partial

    def resend(self, blocks: Sequence[Block]) -> None:
        """Send lines of former generations again; they are in the log."""
        if blocks:
            self._kept += blocks
            self._logged = max(self._logged, blocks[-1].last)
            self._tell(tuple(blocks))

    def _gathered(self, step: int) -> Metrics:
        times = [self.computing * 1e-9, self.waiting * 1e-9, self.blocked * 1e-9]
        part, steps = self._part, step - self._first + 1
        return Metrics(part.role, step, steps, 1, times, part.means, part.sums, part.records)

    def _line(self, step: int) -> None:
        part, blocks = self._part, self._blocks
        if not blocks or blocks[-1].ends[-1] != self._first - 1:
            blocks.append(Block(part.role, 1, self._first - 1, [], ([], [], [])))
        blocks[-1].append(step, self.computing * 1e-9, self.waiting * 1e-9, self.blocked * 1e-9)
        if part.means or part.sums or part.records:
            blocks[-1].note(part)
            self._part = Metrics(part.role, -1, 0, 1, [])
        self.computing = self.waiting = self.blocked = 0
        self._first = -1

    def idle(self) -> bool:
        """The rank is about to block: send what is due. Whether there is more, which soon is."""
        if self._blocks and (now := monotonic_ns()) - self._sent_ns >= FLUSH_NS:
            self._send(now)
        return bool(self._blocks)

    def published(self, step: int) -> None:
        """Lines up to `step` are on disk."""
        while self._kept and self._kept[0].last <= step:
            self._kept.popleft()

    def say_again(self) -> None:
        """Whoever these lines were sent to is gone."""
        if self._kept:
            self._tell(tuple(self._kept))
        self.flush()

    def end(self, step: int) -> None:
        """`step` was the last one: the line ends with it."""
        if self._first >= 0:
            self._line(step)

    def close(self, step: int) -> None:
        """`step` was the last one: send everything."""
        self.end(step)
        self.flush()

    def flush(self) -> None:
        """Send all lines there are."""
        self._send(monotonic_ns())

    def log_again(self) -> None:
        """The files of the log are gone: what is not known to be on disk is written again, and sent."""
        self._logged = -1
        self.flush()

    def _send(self, now_ns: int) -> None:
        self._sent_ns = now_ns
        if self._blocks:
            blocks, self._blocks = tuple(self._blocks), []
            self._kept += blocks
            self._tell(blocks)

    def _tell(self, blocks: tuple[Block, ...]) -> None:
        ctx = self._ctx
        self._report(RankMetrics(ctx.role, ctx.rank, ctx.generation, blocks))
