"""How far apart a rank takes snapshots, and which of them go to disk. Pure."""

from __future__ import annotations

import math
from typing import Final

__all__ = ["apart_s", "until_shared"]

PAUSES: Final = 100
"""Snapshots are up to this many times their own duration apart; then they take 1 % of the time."""
FAILURES_S: Final = 86_400.0
"""Assumed seconds between failures for a job that has not failed yet: one a day."""


def apart_s(pause_s: float, most_s: float | None, failures_s: float = 0.0) -> float:
    """Return the seconds between two snapshots that take `pause_s` each: `PAUSES` times that, or `most_s` if less.

    If `most_s` is None, the limit follows from `failures_s`, the seconds between failures (0: none yet). Snapshots and
    failures together cost least at sqrt(2 * pause * failures). (Young 1974, "A first order approximation to the optimum
    checkpoint interval".)
    """
    if most_s is None:
        most_s = math.sqrt(2 * pause_s * (failures_s or FAILURES_S))
    return min(PAUSES * pause_s, most_s)


def until_shared(step: int, persist_every: int, apart: float) -> int:
    """Return the number of steps until the next snapshot that goes to disk in any case; 0 if `step` is one.

    The rank's snapshots are `apart` steps apart. A checkpoint needs one step from all ranks. So each rank takes those
    of every 2, 4, 8 … times `persist_every` steps, as many as it can. Then all ranks have the steps of the rank that
    takes the fewest (see `rolemesh_checkpoint.persisting`).
    """
    unit = persist_every
    while unit < apart:
        unit *= 2
    return -(step + 1) % unit
