"""The phases of a rank: the status page shows the present one, and each one's time is counted once it has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rolemesh_durable.protocol.rank.page import EDGE, PHASE, SINCE_NS, Fields

__all__ = ["Phases", "Stay"]


Stay: TypeAlias = tuple[int, int, int, tuple[int, int, int], int]
"""A phase that goes on: its number, edge and begin in ns; the same of the phase around it; and the time counted before.
"""


class Phases:
    """The phases of one rank. One may lie within another: a rank that waits may serve a call, or take a snapshot."""

    def __init__(self, fields: Fields, now: Callable[[], int]) -> None:
        """`fields` are those of the status page. `now` returns the time of the rank's clock in ns."""
        self._fields, self._now = fields, now
        self._counted = self._depth = 0
        """The ns of all phases that have ended, and the number of those that go on."""

    def at(self, phase: int, edge: int = -1, since: int = 0) -> None:
        """Show `phase` from now on, or as one that began at `since`."""
        self._fields[PHASE], self._fields[EDGE], self._fields[SINCE_NS] = phase, edge, since or self._now()

    def enter(self, phase: int, edge: int = -1, since: int = 0) -> Stay:
        """Begin a phase within the present one. Show it as one that began at `since` (0: now)."""
        fields, now = self._fields, self._now()
        around = fields[PHASE], fields[EDGE], fields[SINCE_NS]
        fields[PHASE], fields[EDGE], fields[SINCE_NS] = phase, edge, since or now
        self._depth += 1
        return phase, edge, now, around, self._counted

    def leave(self, stay: Stay) -> None:
        """End a phase: count its time, and show the phase around it."""
        fields, now = self._fields, self._now()
        phase, edge, began, around, counted = stay
        self.spent(phase, edge, began, now, now - began - self._counted + counted)
        self._counted = counted + now - began
        self._depth -= 1
        fields[PHASE], fields[EDGE], since = around
        fields[SINCE_NS] = since if self._depth else now

    @contextmanager
    def during(self, phase: int) -> Iterator[Stay]:
        """Run a block in a phase."""
        stay = self.enter(phase)
        try:
            yield stay
        finally:
            self.leave(stay)

    def uncounted(self, ns: int) -> None:
        """Count `ns` of the present phase for none: they are counted elsewhere."""
        self._counted += ns

    def spent(self, phase: int, edge: int, began: int, ended: int, own: int) -> None:
        """A phase has ended. It took `own` ns, without the phases within it."""
