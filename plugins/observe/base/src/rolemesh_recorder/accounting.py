"""From the totals and spans of a rank to the lines of its record. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from rolemesh_durable.api.extensions import PHASES, Outgoing, Span, Totals
from rolemesh_recorder.lines import Account, Stretch

__all__ = ["Accounts", "Spans", "Wall"]

COMPUTING, IDLE, SAVING = "computing", "idle", "saving"
COUNTED: Final = frozenset(("turn", "loading", "gathering", "calling", "serving", "following"))
"""Phases that only spans tell of."""
ENCLOSING: Final = frozenset(("idle", "waiting", "blocked", "saving"))
"""Phases whose totals contain the phases within them."""
NOTHING: Final = (0, -1, 0)
"""The present phase of a rank that is between two phases."""
BETWEEN: Final = frozenset(("idle", "saving"))
"""Phases between two operators."""
JOINED: Final = frozenset(("calling", "serving"))
"""Phases of which several in a row have one line: calls may be short, and many."""
JOINED_NS: Final = 500_000_000
"""Duration of such a line from which it gets no longer."""
GAP_NS: Final = 1_000_000
"""Duration of a gap that such a line does not have."""
MOST_OPEN: Final = 1000
"""Spans that are kept one by one until a later span encloses them."""
MANY: Final = 100
"""Spans in one account above which the recorder leaves out more of the short ones."""


class Wall:
    """Converts ns of the monotonic clock to µs since 1970, with the clocks' distance at its creation."""

    def __init__(self, wall_ns: int, monotonic_ns: int) -> None:
        self._distance = wall_ns - monotonic_ns

    def __call__(self, monotonic_ns: int) -> int:
        return (monotonic_ns + self._distance) // 1000


class Spans:
    """Turns spans into lines, and adds up those times that a rank's totals lack.

    At most about twice `MANY` spans get a line per account: the minimum duration doubles after an account with more,
    and halves after one with few.
    """

    def __init__(self, wall: Wall) -> None:
        self._wall = wall
        self._inner: list[tuple[int, int, int]] = []
        """Begins of spans that no later span encloses yet, and the durations of all such spans, and calls, before."""
        self._sum = self._served = 0
        """The duration of all spans that no later span encloses, and that of all calls that the rank has answered."""
        self.own: dict[str, int] = {}
        """ns by name, to add to the rank's totals; negative if a total counts time twice."""
        self.least_ns = 1_000_000
        self._told = 0
        self._joined: list[Span] = []
        """The latest span of calls, which the next one may prolong; none or one. Each thread pops it first."""

    def take(self, span: Span) -> list[Stretch]:
        """Count a span; return the lines that are complete now. A span that is too short has none."""
        phase, took, before, served = PHASES[span.phase], span.ended - span.began, self._sum, self._served
        while self._inner and self._inner[-1][0] >= span.began:
            _, before, served = self._inner.pop()
        inner = self._sum - before
        if len(self._inner) == MOST_OPEN:
            del self._inner[1::2]  # a later span may then seem to begin one span earlier or later
        self._inner.append((span.began, before, served))
        self._sum = before + took
        if phase in COUNTED:
            self._add(phase, took - inner)
        elif phase in ENCLOSING:
            at = bucket(phase, span.edge)
            self._add(at, -inner if at != "memory" else took - inner)
        else:
            self._add(phase, served - self._served)  # an operator's time includes that of the calls within it
        if phase == "serving":
            self._served += took
        last = self._joined.pop() if self._joined else None
        if phase not in JOINED:
            return [*self._lines(last), *self._lines(span)]
        if last is not None and _joins(last, span):
            self._joined.append(last._replace(ended=span.ended))
            return []
        self._joined.append(span)
        return self._lines(last)

    def rest(self, before: int) -> list[Stretch]:
        """Return the line of a span of calls that ended before a time, and that a later span would prolong."""
        if not self._joined or self._joined[-1].ended > before:
            return []
        with suppress(IndexError):
            return self._lines(self._joined.pop())
        return []

    def _lines(self, span: Span | None) -> list[Stretch]:
        if span is None or span.ended - span.began < self.least_ns:
            return []
        self._told += 1
        phase = PHASES[span.phase]
        op, took = -1 if phase in BETWEEN else span.op, span.ended - span.began
        return [Stretch(phase, self._wall(span.began), took // 1000, span.step, op, span.edge)]

    def since(self, time: int) -> int:
        """Return the duration of the spans that began at `time` or later. Any thread may ask."""
        return self._sum - next((before for began, before, _ in self._inner.copy() if began >= time), self._sum)

    def turn(self) -> int:
        """An account ends: return the minimum duration of its spans in µs, and set that of the next one."""
        least, told = self.least_ns // 1000, self._told
        self._told = 0
        if told > MANY:
            self.least_ns *= 2
        elif told < MANY // 4 and self.least_ns > 1_000_000:
            self.least_ns //= 2
        return least

    def _add(self, name: str, ns: int) -> None:
        if ns:
            self.own[name] = self.own.get(name, 0) + ns


Edges = Callable[[], tuple[dict[int, Outgoing], dict[int, int]]]
"""The rank's ends of its edges: see `rolemesh_durable.api.extensions.edges_of`."""


class Accounts:
    """Makes the accounts of a rank, one after the other without a gap, from its totals at their ends."""

    def __init__(
        self,
        wall: Wall,
        spans: Spans,
        totals: Callable[[], Totals],
        edges: Edges,
        now: int,
        resume: int = -1,
        traffic: Callable[[], Mapping[int, tuple[int, int]]] = dict,
    ) -> None:
        """The first account begins at `now`, in ns of the monotonic clock, after step `resume` (-1: none).

        The totals name a finished step only once the rank makes steps, so a restored rank must say where it begins.
        `traffic` returns what `Transport.traffic` counts, for all transports.
        """
        self._traffic, self._travelled = traffic, dict(traffic())
        self._wall, self._spans, self._totals, self._edges, self._began = wall, spans, totals, edges, now
        self._sent = {edge: end.sent for edge, end in edges()[0].items()}
        # The page shows a phase since the rank's setup, which no total will ever have.
        self._booked = amounts(totals()._replace(now=NOTHING, around=NOTHING), spans, now)
        self._finished = resume

    def next(self, now: int) -> Account:
        """Return the account up to `now`."""
        totals = self._totals()
        began, ended = self._wall(self._began), self._wall(now)
        spent = self._spent(amounts(totals, self._spans, now), ended - began)
        finished = totals.finished if totals.finished >= 0 else self._finished
        steps = max(0, finished - self._finished)
        self._began, self._finished = now, finished
        ends, queued = self._edges()
        sent = {edge: (self._more(edge, end.sent), end.under_way, end.credits) for edge, end in ends.items()}
        least, travelled = self._spans.turn(), self._more_travelled()
        return Account(began, ended - began, finished, steps, spent, least, sent, queued, travelled)

    def _more_travelled(self) -> dict[int, tuple[int, int]]:
        before, self._travelled = self._travelled, dict(self._traffic())
        more = {
            edge: (nbytes - was[0], left - was[1])
            for edge, (nbytes, left) in self._travelled.items()
            for was in [before.get(edge, (0, 0))]
        }
        return {edge: both for edge, both in more.items() if any(both)}

    def _spent(self, found: Mapping[str, int], room: int) -> dict[str, int]:
        """Return the µs by name since the last account, `room` µs together at most.

        More than that belongs to earlier accounts. If those have it under another name, because the page said something
        else until the span ended, that name gets less than nothing. Otherwise the next account has it.
        """
        more = {name: int((ns - self._booked.get(name, 0)) / 1000) for name, ns in found.items()}
        spent = {name: us for name, us in more.items() if us > 0}
        over = sum(spent.values()) - room
        for name, us in more.items():
            if over > 0 > us:
                spent[name] = max(us, -over)
                over += spent[name]
        if over > 0:
            spent[max(spent, key=spent.__getitem__)] -= over
        for name, us in spent.items():
            self._booked[name] = self._booked.get(name, 0) + us * 1000
        return spent

    def _more(self, edge: int, nbytes: int) -> int:
        """Return the bytes since the last account. An edge of a new layout begins again at 0."""
        before, self._sent[edge] = self._sent.get(edge, 0), nbytes
        return nbytes - before if nbytes >= before else nbytes


def _joins(last: Span, span: Span) -> bool:
    """Return whether one line may stand for both spans: the gap between them is short, and not longer than the span."""
    gap = span.began - last.ended
    alike = (last.phase, last.op, last.edge, last.step) == (span.phase, span.op, span.edge, span.step)
    return alike and 0 <= gap < min(GAP_NS, span.ended - span.began) and last.ended - last.began < JOINED_NS


def amounts(totals: Totals, spans: Spans, now: int) -> dict[str, int]:
    """Return ns by name: the totals, the times of spans, and the present phase so far.

    A phase goes on after a span within it, with the begin that it had.
    """
    found = {COMPUTING: totals.computing, IDLE: totals.idling, SAVING: totals.saving}
    found |= {f"edge {edge}": ns for edge, ns in totals.edges.items() if ns}
    for name, ns in spans.own.copy().items():
        found[name] = found.get(name, 0) + ns
    until, later = now, 0
    for number, edge, since in (totals.now, totals.around):
        if since:
            name, inner = bucket(PHASES[number], edge), spans.since(since)
            found[name] = found.get(name, 0) + max(0, until - since - inner + later)
            until, later = since, inner
    return found


def bucket(phase: str, edge: int) -> str:
    """Return the name under which an account counts a phase."""
    if phase in ("waiting", "blocked"):
        return f"edge {edge}" if edge >= 0 else "memory"
    return phase
