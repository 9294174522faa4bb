"""When a master that died is started again, and when no more. Pure."""

from __future__ import annotations

__all__ = ["Restarts"]

LIMIT = 5
CALM_S = 10.0
FIRST_DELAY_S = 0.25


class Restarts:
    """Counts deaths of a job's masters that say something about the master itself.

    A death counts against it if the master ended by itself, or was killed before its loop ran. One that was killed at
    work does not: it is started again at once, however often. `LIMIT` deaths in a row, none of the masters having
    lived for `CALM_S` seconds, are the end.
    """

    def __init__(self, crashes: int = 0) -> None:
        self.crashes = crashes

    def died(self, *, lived_s: float, in_control: bool, by_signal: bool) -> float | None:
        """Seconds to wait before the next start, longer each time; None: give up."""
        if lived_s >= CALM_S:
            self.crashes = 0
        if in_control and by_signal:
            return 0.0
        self.crashes += 1
        if self.crashes >= LIMIT:
            return None
        return float(FIRST_DELAY_S * 2 ** (self.crashes - 1))
