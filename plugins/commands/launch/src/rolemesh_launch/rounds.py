"""Agree when the ranks of a script may end a step together, without making any rank wait for another.

A script takes its steps in its own time. A rank that waited for others in the middle of one could block them in a
collective for ever. So each rank reports once per round that it has reached a safe point, and it leaves its script only
when all have.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["ROUND_S", "Alone", "Counter", "Rounds"]

ROUND_S = 0.25
"""Minimum seconds of a round."""
LOOK_S = 0.02
"""Seconds between two looks at the number of ranks that have reported."""


class Counter(Protocol):
    """A store that all ranks reach, such as torch's ``TCPStore``."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to the number under `key`, which starts at 0. Return the sum."""

    def delete_key(self, key: str, /) -> bool:
        """Forget a number. Return whether there was one."""


class Alone(dict[str, int]):
    """The store of a rank that is the only one."""

    def add(self, key: str, amount: int, /) -> int:
        """See `Counter.add`."""
        self[key] = self.get(key, 0) + amount
        return self[key]

    def delete_key(self, key: str, /) -> bool:
        """See `Counter.delete_key`."""
        return self.pop(key, None) is not None


class Rounds:
    """Rounds of `size` ranks. No rank is more than one round ahead of another."""

    def __init__(self, counter: Counter, size: int) -> None:
        self._counter, self._size = counter, size
        self._round, self._arrived = 0, False
        self._begun = self._looked = time.monotonic()

    def may_end(self) -> bool:
        """Called when the script reaches a safe point. Return whether this rank may end its round here. Cheap."""
        now = time.monotonic()
        if now < self._begun + ROUND_S or now < self._looked + LOOK_S:
            return False
        self._looked = now
        return self.all_here()

    def all_here(self) -> bool:
        """Report this rank, and return whether all ranks have reported in this round."""
        amount, self._arrived = int(not self._arrived), True
        return self._counter.add(f"round {self._round}", amount) >= self._size

    def meet(self) -> None:
        """This rank stops looking at rounds until all ranks do the same."""
        self._counter.add("met", 1)

    def all_met(self) -> bool:
        """Return whether all ranks have met. Then no count changes until `full` is false in all ranks."""
        return self._counter.add("met", 0) >= self._size

    def full(self) -> bool:
        """Return whether all ranks have reported in this rank's round, so that some may have ended it."""
        return self._counter.add(f"round {self._round}", 0) >= self._size

    def next(self) -> None:
        """End this rank's round."""
        self._counter.delete_key(f"round {self._round - 1}")  # all ranks have ended it
        self._round, self._arrived = self._round + 1, False
        self._begun = time.monotonic()

    def end(self) -> None:
        """The script of this rank has ended; the rank continues with rounds until all scripts have."""
        self._counter.add("ended", 1)

    def all_ended(self) -> bool:
        """Return whether the scripts of all ranks have ended."""
        return self._counter.add("ended", 0) >= self._size
