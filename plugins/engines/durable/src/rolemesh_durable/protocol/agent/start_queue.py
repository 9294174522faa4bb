"""A limit on concurrent starts: a thousand ranks that start together would leave their agent no time."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["AT_ONCE", "StartQueue"]

AT_ONCE = 64
"""Maximum number of ranks that start, or set up, at the same time."""
PATIENCE_S = 0.5
"""Admit more ranks if none has finished for this many seconds: then they do not wait for the processor."""
K = TypeVar("K", bound=Hashable)


class StartQueue(Generic[K]):
    """A queue that admits a limited number, and more when those have arrived or are slow."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._waiting: dict[K, None] = {}
        self._under_way: set[K] = set()
        self._moved = float("-inf")

    def __contains__(self, key: object) -> bool:
        return key in self._waiting

    def add(self, key: K) -> None:
        """Add one to the queue."""
        self._waiting[key] = None

    def arrived(self, key: K) -> None:
        """Remove one that has arrived, or will not arrive."""
        self._waiting.pop(key, None)
        self._under_way.discard(key)

    def go(self, now: float) -> Iterator[K]:
        """Return those that may go at time `now`, in the order in which they came."""
        if self._waiting and now >= self._moved + PATIENCE_S:
            self._under_way.clear()
        while self._waiting and len(self._under_way) < self._at_once:
            key = next(iter(self._waiting))
            del self._waiting[key]
            self._under_way.add(key)
            self._moved = now
            yield key
