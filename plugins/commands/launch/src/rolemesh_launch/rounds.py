"""When the ranks of a script may end a step together, although none of them waits for another.

A script takes its steps when it likes, and a rank that waited for others in the middle of it could keep them waiting in
a collective for ever. So each rank says once a round that it has come by, and leaves its script only when all have.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["ROUND_S", "Counter", "Rounds"]

ROUND_S = 0.25
"""A round takes at least so long."""
LOOK_S = 0.02
"""And so long passes between two looks at who has come by."""


class Counter(Protocol):
    """A store that all ranks reach, such as torch's ``TCPStore``."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to what is kept under `key`, 0 at first; the sum."""


class Rounds:
    """Rounds of `size` ranks. None is more than one round ahead of another."""

    def __init__(self, counter: Counter, size: int) -> None:
        self._counter, self._size = counter, size
        self._round, self._arrived = 0, False
        self._begun = self._looked = time.monotonic()

    def may_end(self) -> bool:
        """The script has come by somewhere; whether this rank may end its round here. Cheap."""
        now = time.monotonic()
        if now < self._begun + ROUND_S or now < self._looked + LOOK_S:
            return False
        self._looked = now
        return self.all_here()

    def all_here(self) -> bool:
        """This rank has come by; whether all have in this round."""
        amount, self._arrived = int(not self._arrived), True
        return self._counter.add(f"round {self._round}", amount) >= self._size

    def meet(self) -> None:
        """This rank looks at rounds no more until all do the same."""
        self._counter.add("met", 1)

    def all_met(self) -> bool:
        """Whether every rank has: then no count changes any more until `full` is false in all."""
        return self._counter.add("met", 0) >= self._size

    def full(self) -> bool:
        """Whether all ranks have come by in this one's round, so that some may have ended it."""
        return self._counter.add(f"round {self._round}", 0) >= self._size

    def next(self) -> None:
        """This rank has ended its round."""
        self._round, self._arrived = self._round + 1, False
        self._begun = time.monotonic()

    def end(self) -> None:
        """This rank's script has ended; it goes on with rounds until all have."""
        self._counter.add("ended", 1)

    def all_ended(self) -> bool:
        """Whether every rank's script has."""
        return self._counter.add("ended", 0) >= self._size
