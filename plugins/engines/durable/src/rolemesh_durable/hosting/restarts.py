"""Decide when a dead master restarts, and when to give up. Pure."""

from __future__ import annotations

__all__ = ["Restarts"]

LIMIT = 5
CALM_S = 10.0
FIRST_DELAY_S = 0.25


class Restarts:
    """Counts the deaths of a job's masters that have a cause in the master itself.

    A death counts if the master ended by itself, or was killed before its loop ran. A master that was killed at work
    does not count: it restarts at once, any number of times. The end is reached after `LIMIT` deaths in a row of
    masters that each lived less than `CALM_S` seconds.
    """

    def __init__(self, crashes: int = 0) -> None:
        self.crashes = crashes

    def died(self, *, lived_s: float, in_control: bool, by_signal: bool) -> float | None:
        """Return the seconds to wait before the next start, longer each time; None: give up."""
        if lived_s >= CALM_S:
            self.crashes = 0
        if in_control and by_signal:
            return 0.0
        self.crashes += 1
        if self.crashes >= LIMIT:
            return None
        return float(FIRST_DELAY_S * 2 ** (self.crashes - 1))
