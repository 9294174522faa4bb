"""Finds the ranks that are slower than the others of their role, for long enough to matter, report by report. Pure."""

from __future__ import annotations

from statistics import median

from rolemesh.api.failures import Failure
from rolemesh_durable.protocol.messages import RankReport

__all__ = ["StragglerWatch"]

FACTOR = 2.0
"""Factor by which the time of a straggler's step exceeds the median of the others."""
FOR_S = 60.0
"""Seconds for which a rank must be slower before it counts as a straggler."""
WINDOWS = 3
"""Number of windows in a row that must be slow. Each is at least one step long."""
MATTERS = 0.1
"""Minimum share of wall time that slowness must cost: ranks that compute for microseconds differ by any factor."""
WORKS = 0.8
"""A rank that has a processor for this share of its time in operators does not wait for the other ranks."""


class _RankWindow:
    """One start of a rank: its window's beginning, its time per step in the last one, and its slow windows in a row."""

    __slots__ = ("began", "busy_s", "finished", "generation", "per_step", "slow", "told", "worked_s")

    def __init__(self, report: RankReport, now: float) -> None:
        self.generation = report.generation
        self.per_step: float | None = None
        self.slow = 0
        self.told = False
        self.start(report, now)

    def start(self, report: RankReport, now: float) -> None:
        self.began, self.finished = now, report.finished
        self.busy_s, self.worked_s = report.busy_s, report.worked_s


class StragglerWatch:
    """Reports a rank once if its computing time per step is far above that of the role's other ranks.

    The watch compares seconds in operators per finished step, without waits for inputs and credits: other ranks cause
    those waits. Ranks of a role have equal shares of each step's work. If the work differs from step to step, the
    windows even it out. If one rank always gets more work, the watch rightly names it.

    Ranks of collective roles wait for each other inside the operator, so all take equally long. For them the watch
    compares the time for which their processes have a processor or want one. The straggler works nearly all the time,
    while the others sleep until it arrives. If waiting is spinning, as on most GPUs, they look alike, and the watch
    names none.
    """

    def __init__(self, factor: float = FACTOR, for_s: float = FOR_S) -> None:
        """A rank is slow above `factor` (> 1) times the median of the others, and named after `for_s` seconds of it."""
        self._factor = factor
        self._window_s = for_s / WINDOWS
        self._roles: dict[str, dict[int, _RankWindow]] = {}

    def seen(self, report: RankReport, now: float, *, collective: bool = False) -> Failure | None:
        """Take a report, at `now` (seconds of a monotonic clock).

        Return a failure of cause "straggler" if the rank is one.

        The watch repeats it only after the rank has been well below the factor (halfway to the others) for a window, or
        has started again. A role needs two ranks that have finished steps.
        """
        if report.state != "ready":
            return None
        ranks = self._roles.setdefault(report.role, {})
        pace = ranks.get(report.rank)
        if pace is None or pace.generation != report.generation or report.finished < pace.finished:
            ranks[report.rank] = _RankWindow(report, now)
            return None
        elapsed, steps = now - pace.began, report.finished - pace.finished
        if elapsed < self._window_s or steps < 1:
            return None
        busy, worked = report.busy_s - pace.busy_s, report.worked_s - pace.worked_s
        per_step = pace.per_step = (worked if collective else busy) / steps
        waits = collective and worked < WORKS * busy
        pace.start(report, now)
        others = [p.per_step for rank, p in ranks.items() if rank != report.rank and p.per_step is not None]
        if not others:
            return None
        usual = median(others)
        if not waits and per_step > self._factor * usual and (per_step - usual) * steps > MATTERS * elapsed:
            pace.slow += 1
        else:
            pace.slow = 0
            pace.told = pace.told and per_step > (1 + self._factor) / 2 * usual
        if pace.slow < WINDOWS or pace.told:
            return None
        pace.told = True
        they = ", and they wait for it" if collective else ""
        return Failure(
            "straggler",
            report.role,
            report.rank,
            step=report.finished,
            message=(
                f"it needs {per_step:.3g} s to compute a step, the median of the role's other {len(others)} is "
                f"{usual:.3g} s{they}; so for {WINDOWS * self._window_s:.0f} s at least"
            ),
            generation=report.generation,
        )
