"""How many steps ranks may run ahead of what all have finished: what takes them some seconds, found while they run.
Pure."""

from __future__ import annotations

import math

from rolemesh_durable.protocol.master_config import MasterConfig

__all__ = ["GrantSize"]

AHEAD_S = 4.0
"""Ranks are granted what they do in this time, and more when half of it is gone: a master may be away for the rest."""
LEAST = 2
"""So many steps are granted in any case, and before anybody knows how long one takes."""
GROWTH = 4
"""Who comes to the end of a grant was slower for it: the next is so much larger, as far as half of that fits the speed
that was seen, which it does not where the master was away."""
UNLIMITED = 1 << 30
LOOK_S = 0.5
"""The speed is taken over at least this long."""


class GrantSize:
    """Grows at once when ranks are quick, and shrinks by half in each `LOOK_S` in which they are slow."""

    def __init__(self, outline: MasterConfig) -> None:
        """`outline.grant`, if there is one, is the limit. What edges need is granted in any case."""
        ops = outline.graph.ops
        # The grant does not hold back a producer that may be many values ahead on an edge.
        edges = [2 * edge.window * max(ops[edge.src].every, ops[edge.dst].every) for edge in outline.graph.edges]
        self._limit = UNLIMITED if outline.grant is None else outline.grant
        self._least = min(max((LEAST, *edges)), self._limit)
        self._size = self._least
        self._since, self._from = -math.inf, -1

    def ahead(self, finished: int, granted: int, now: float) -> int:
        """So many steps beyond `finished` at time `now` (s), when all up to `granted` have been granted."""
        if finished < self._from or self._since == -math.inf:  # it has gone back, or just begun
            self._since, self._from = now, finished
        elapsed = now - self._since
        done = (finished - self._from) / elapsed * AHEAD_S if elapsed > 0 else math.inf
        if finished >= granted > self._from:  # once: no more may be granted for other reasons
            self._look(finished, now, min(GROWTH * self._size, max(self._size, GROWTH / 2 * done)))
        elif elapsed >= LOOK_S:
            self._look(finished, now, max(done, self._size // 2))
        return self._size

    def _look(self, finished: int, now: float, size: float) -> None:
        self._since, self._from = now, finished
        self._size = min(max(math.ceil(size), self._least), self._limit)
