"""The time that a master counts: all but that in which it had no turn."""

from __future__ import annotations

__all__ = ["STALL_S", "OwnTime"]

STALL_S = 1.0
"""The most that passes between two turns. A master that was stopped, waited for its store or slept with its machine
has heard nobody meanwhile: what was beyond this was nobody's silence, and used up nobody's time."""


class OwnTime:
    """Seconds in which the master has been at work; goes with the clock that it is fed, and stands still with it."""

    def __init__(self) -> None:
        self._turned: float | None = None
        self._lost = 0.0

    def turn(self, clock: float) -> float:
        """The own time of a turn at `clock` (seconds of a monotonic clock)."""
        if self._turned is not None:
            self._lost += max(0.0, clock - self._turned - STALL_S)
        self._turned = clock
        return clock - self._lost
