"""From the totals and spans of a rank to the lines of its record. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rolemesh_durable.api.extensions import PHASES, Outgoing, Span, Totals
from rolemesh_recorder.lines import Account, Stretch

__all__ = ["Accounts", "Spans", "Wall"]

COMPUTING, IDLE, SAVING = "computing", "idle", "saving"
COUNTED: Final = frozenset(("turn", "loading", "gathering", "calling", "serving", "following"))
"""Phases that only spans tell of."""
ENCLOSING: Final = frozenset(("idle", "waiting", "blocked", "saving"))
"""Phases whose totals contain the phases within them."""
BETWEEN: Final = frozenset(("idle", "saving"))
"""Phases between two operators."""
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
        self._inner: list[tuple[int, int]] = []
        """Begins of spans that no later span encloses yet, and the duration of all such spans before each."""
        self._sum = 0
        """The duration of all spans that no later span encloses."""
        self.own: dict[str, int] = {}
        """ns by name, to add to the rank's totals; negative if a total counts time twice."""
        self.least_ns = 1_000_000
        self._told = 0

    def take(self, span: Span) -> Stretch | None:
        """Count a span; return its line, or None if it is too short for one."""
        phase, took, before = PHASES[span.phase], span.ended - span.began, self._sum
        while self._inner and self._inner[-1][0] >= span.began:
            before = self._inner.pop()[1]
        inner = self._sum - before
        if len(self._inner) == MOST_OPEN:
            del self._inner[1::2]  # a later span may then seem to begin one span earlier or later
        self._inner.append((span.began, before))
        self._sum = before + took
        if phase in COUNTED:
            self._add(phase, took - inner)
        elif phase in ENCLOSING:
            at = bucket(phase, span.edge)
            self._add(at, -inner if at != "memory" else took - inner)
        if took < self.least_ns:
            return None
        self._told += 1
        op = -1 if phase in BETWEEN else span.op
        return Stretch(phase, self._wall(span.began), took // 1000, span.step, op, span.edge)

    def since(self, time: int) -> int:
        """Return the duration of the spans that began at `time` or later. Any thread may ask."""
        return self._sum - next((before for began, before in self._inner.copy() if began >= time), self._sum)

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
        self, wall: Wall, spans: Spans, totals: Callable[[], Totals], edges: Edges, now: int, resume: int = -1
    ) -> None:
        """The first account begins at `now`, in ns of the monotonic clock, after step `resume` (-1: none).

        The totals name a finished step only once the rank makes steps, so a restored rank must say where it begins.
        """
        self._wall, self._spans, self._totals, self._edges, self._began = wall, spans, totals, edges, now
        self._sent = {edge: end.sent for edge, end in edges()[0].items()}
        self._booked = amounts(totals(), spans, now)
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
        return Account(began, ended - began, finished, steps, spent, self._spans.turn(), sent, queued)

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


def amounts(totals: Totals, spans: Spans, now: int) -> dict[str, int]:
    """Return ns by name: the totals, the times of spans, and the present phase so far.

    A phase goes on after a span within it, with the begin that it had.
    """
    found = {COMPUTING: totals.computing, IDLE: totals.idling, SAVING: totals.saving}
    found |= {f"edge {edge}": ns for edge, ns in totals.edges.items() if ns}
    for name, ns in spans.own.copy().items():
        found[name] = found.get(name, 0) + ns
    number, edge, since = totals.now
    if since:
        name = bucket(PHASES[number], edge)
        found[name] = found.get(name, 0) + max(0, now - since - spans.since(since))
    return found


def bucket(phase: str, edge: int) -> str:
    """Return the name under which an account counts a phase."""
    if phase in ("waiting", "blocked"):
        return f"edge {edge}" if edge >= 0 else "memory"
    return phase
