"""The master's own time: it leaves out long pauses between turns."""

from __future__ import annotations

__all__ = ["STALL_S", "OwnTime"]

STALL_S = 1.0
"""Maximum seconds that count between two turns.

A master that was stopped, waited for its store or slept with its machine received no messages meanwhile. So the rest of
the pause counts as no agent's silence, and uses up no time limit.
"""


class OwnTime:
    """The seconds in which the master was at work, from a clock that the caller reads."""

    def __init__(self) -> None:
        self._turned: float | None = None
        self._lost = 0.0

    def turn(self, clock: float) -> float:
        """Return the own time of a turn at `clock` (seconds of a monotonic clock)."""
        if self._turned is not None:
            self._lost += max(0.0, clock - self._turned - STALL_S)
        self._turned = clock
        return clock - self._lost
