"""The number of steps that ranks may run ahead of the slowest rank: a few seconds' worth, measured while they run.

Pure.
"""

from __future__ import annotations

import math

from rolemesh_durable.protocol.master_config import MasterConfig

__all__ = ["GrantSize"]

AHEAD_S = 4.0
"""Seconds of work that the master grants. It grants more when half of them are used, so it may be away for the rest."""
LEAST = 2
"""Minimum number of steps granted, also before the master knows how long a step takes."""
GROWTH = 4
"""If ranks exhausted their grant, it slowed them down: the next one grows by this factor.

It grows to at most twice the observed speed, because the master may just have been away.
"""
UNLIMITED = 1 << 30
LOOK_S = 0.5
"""Seconds over which the master measures the speed, at least."""


class GrantSize:
    """Grows at once when ranks are quick, and shrinks by half in each `LOOK_S` in which they are slow."""

    def __init__(self, config: MasterConfig) -> None:
        """`config.grant`, if there is one, is the limit. The grant is never less than the edges need."""
        ops = config.job.graph.ops
        # The grant does not hold back a producer that may be many values ahead on an edge.
        edges = [2 * edge.window * max(ops[edge.src].every, ops[edge.dst].every) for edge in config.job.graph.edges]
        self._limit = UNLIMITED if config.grant is None else config.grant
        self._least = min(max((LEAST, *edges)), self._limit)
        self._size = self._least
        self._since, self._from = -math.inf, -1

    def ahead(self, finished: int, granted: int, now: float) -> int:
        """Return the number of steps to grant beyond `finished` at time `now` (s).

        Steps up to `granted` are granted already.
        """
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
