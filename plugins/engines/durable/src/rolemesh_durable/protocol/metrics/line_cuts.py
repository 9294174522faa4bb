"""The steps at which lines of metrics end: the same for all ranks, and never changed afterwards. Pure.

A line covers one step where steps are slow, and a power of two of them where steps are quick, so that a rank writes
about `PER_S` lines per second at most. The master measures the job's speed and journals each change (`LinesCut`). A
change begins beyond the steps that any rank may run, so all ranks cut their lines alike. A rank that starts again from
an earlier step cuts the same lines again.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

__all__ = ["MOST_CUTS", "STEPWISE", "Cuts", "LinePace", "last_end", "line_end", "united", "with_cut", "with_end"]

PER_S: Final = 20.0
"""The most lines per second by default."""
LOOK_S: Final = 0.5
"""The master measures the job's speed over at least this time, in seconds."""
FIRST_LOOK_S: Final = 0.1
"""The same for the first time: the first grant of a quick job ends soon."""
FASTER: Final = 1.25
"""Lines become longer if there are this many times too many per second."""
SLOWER: Final = 4
"""Lines become shorter if a fourth of their steps is enough. Smaller variations of the speed change nothing."""
CALM: Final = 10
"""Lines become shorter if that was enough in this many looks in a row: a job that stands still for a moment goes on as
before."""
LONGEST: Final = 1 << 20
"""The most steps that one line covers."""
MOST_CUTS: Final = 64
"""The most entries of `Cuts`. A job with this number of entries keeps the length of its lines."""

STEPWISE: Final = 1024
"""The number of steps at the beginning that have a line each: short jobs, and jobs that people try, have every step."""

Cuts: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs (step, every), by step: from this step on, a line ends after each step whose successor `every` divides.

A line also ends before each of these steps but the first: a line that a resumed job has begun earlier goes on there.
"""


def line_end(cuts: Cuts, step: int) -> int:
    """Return the step at which the line that covers `step` ends."""
    step = max(step, cuts[0][0])
    limit = 0
    for first, every in reversed(cuts):
        if first <= step:
            end = (step // every + 1) * every - 1
            return min(end, limit) if limit else end
        limit = first - 1
    raise AssertionError("the first cut is not after `step`")


def last_end(cuts: Cuts, step: int) -> int:
    """Return the newest step, up to `step`, at which a line ends."""
    if line_end(cuts, step) == step:
        return step
    first, every = _at(cuts, step)
    return max(first, step // every * every) - 1


def _every_at(cuts: Cuts, step: int) -> int:
    """Return how many steps the line that covers `step` has at most."""
    return _at(cuts, step)[1]


def _at(cuts: Cuts, step: int) -> tuple[int, int]:
    return next((cut for cut in reversed(cuts) if cut[0] <= step), cuts[0])


def with_cut(cuts: Cuts, new: tuple[int, int], restored: int) -> Cuts:
    """Return `cuts` with `new`, but without those that end before: no rank is restored to a step before `restored`.

    A rank that is restored to `restored` may have begun the line that ends there.
    """
    found = tuple(sorted({**dict(cuts), new[0]: new[1]}.items()))
    over = [at for at, (first, _) in enumerate(found) if first <= restored]
    return found[max(over, default=0) :]


def with_end(cuts: Cuts, step: int, restored: int) -> Cuts:
    """Return `cuts` with a line that ends with `step`, and no other change; `restored` as in `with_cut`."""
    return with_cut(cuts, (step + 1, _every_at(cuts, step + 1)), restored)


def united(known: Cuts, new: Cuts) -> Cuts:
    """Return what two messages say together, of which either may be the newer one."""
    begin = max(known[0], new[0])
    return known if known == new else tuple(cut for cut in sorted({*known, *new}) if cut >= begin)


class LinePace:
    """Decides how many steps a line covers, from the speed at which all ranks finish steps."""

    def __init__(self) -> None:
        self._since = -1.0
        self._from = -1
        self._look_s = FIRST_LOOK_S
        self._latest = deque[float](maxlen=CALM)

    def wanted(self, finished: int, every: int, now: float) -> int:
        """Return the number of steps for new lines, where lines have `every` steps now.

        All ranks have finished step `finished` at time `now`, in seconds.
        """
        if self._since < 0.0 or finished < self._from:
            self._since = now
            self._from = finished
        elapsed = now - self._since
        if elapsed < self._look_s:
            return every
        lines = (finished - self._from) / elapsed / PER_S
        self._since, self._from, self._look_s = now, finished, LOOK_S
        self._latest.append(lines)
        longer, found = lines > every * FASTER, 1
        while found < (lines if longer else max(self._latest)) and found < LONGEST:
            found *= 2
        return found if longer or found * SLOWER <= every else every
