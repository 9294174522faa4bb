"""Statistics of a job for a watcher: series of metrics, rates, shares of time, the remaining time. No output."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolemesh.api.observer import Event, RoleTimes, RunInfo, StepMetrics

__all__ = ["Series", "Statistics", "Thirds"]

MAX_BUCKETS = 4096
RECENT = 32
DEFAULT_METRICS = 8


@dataclass(frozen=True)
class Thirds:
    """Means of the first and the last third of the steps that have a value."""

    first: float
    last: float


class Series:
    """A metric over the steps. A value counts with the number of steps of its line. Beyond `MAX_BUCKETS` values,
    neighbours are averaged, so the memory is bounded."""

    def __init__(self) -> None:
        self.first: tuple[int, float] | None = None
        """Step and value of the first finite value."""
        self.last: tuple[int, float] | None = None
        self.latest = math.nan
        """The latest value, finite or not."""
        self.seen = 0
        """Number of finite values."""
        self.odd: tuple[int, int] | None = None
        """Step of the first value that is not finite, and the number of steps with such values."""
        self._sums: list[float] = []
        self._counts: list[int] = []
        self._width = 1

    def add(self, step: int, value: float, steps: int = 1) -> None:
        """Add the value of a line that covers `steps` steps up to `step`. Values that are not finite are shown but not
        counted."""
        self.latest = value
        if not math.isfinite(value):
            first, before = self.odd or (step, 0)
            self.odd = first, before + steps
            return
        self.first = self.first or (step, value)
        self.last = (step, value)
        self.seen += 1
        if self._counts and self._counts[-1] < self._width:
            self._sums[-1] += value * steps
            self._counts[-1] += steps
            return
        if len(self._sums) == MAX_BUCKETS:
            self._sums = [a + b for a, b in zip(self._sums[::2], self._sums[1::2], strict=True)]
            self._counts = [a + b for a, b in zip(self._counts[::2], self._counts[1::2], strict=True)]
            self._width *= 2
        self._sums.append(value * steps)
        self._counts.append(steps)

    def thirds(self) -> Thirds | None:
        """Return the means; None with fewer than three values."""
        if self.seen < 3:
            return None
        parts = list(zip(self._sums, self._counts, strict=True))
        return Thirds(_mean_of_third(parts), _mean_of_third(parts[::-1]))

    def points(self, n: int) -> list[float]:
        """Return at most `n` means of equally many steps, for a sparkline."""
        total, at = sum(self._counts), 0
        n = min(n, total)
        found = [(0.0, 0.0)] * n
        for amount, count in zip(self._sums, self._counts, strict=True):
            begin, end = at * n / total, (at + count) * n / total
            for part in range(int(begin), min(n, math.ceil(end))):
                share = min(end, part + 1) - max(begin, part)
                found[part] = found[part][0] + amount / count * share, found[part][1] + share
            at += count
        return [amount / share for amount, share in found if share > 0]


def _mean_of_third(parts: Sequence[tuple[float, int]]) -> float:
    """Return the mean of the first parts that are within a third of all steps, and at least of the first one."""
    third = sum(count for _, count in parts) / 3
    amount, steps = parts[0]
    for more, count in parts[1:]:
        if steps + count > third:
            break
        amount, steps = amount + more, steps + count
    return amount / steps


@dataclass
class Statistics:
    """Statistics from an observer's hooks. `wanted` are the metrics to feature, all if empty; `kept` the records to
    keep."""

    wanted: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    run: RunInfo | None = None
    series: dict[str, Series] = field(default_factory=dict)
    staleness: dict[str, float] = field(default_factory=dict)
    records: dict[str, tuple[tuple[int, Any], tuple[int, Any]]] = field(default_factory=dict)
    """Name → (step, value) of the first and of the last one."""
    role_totals: dict[str, RoleTimes] = field(default_factory=dict)
    amounts: dict[str, float] = field(default_factory=dict)
    """Totals of the quantities that are shown per second: those whose names end in ``tokens``."""
    left_out: float = 0.0
    """Number of rows that operators left out because of errors (``Balanced(on_error="drop")``)."""
    finished: int = 0
    """Steps that every role has finished."""
    running_since: float | None = None
    rank_up: dict[tuple[str, int], float] = field(default_factory=dict)
    last_time: float = 0.0

    def __post_init__(self) -> None:
        self._recent: deque[StepMetrics] = deque(maxlen=RECENT + 1)
        self._resized = 0.0

    def event(self, event: Event) -> None:
        """Record when ranks came up and when the job began to step."""
        if event.kind == "rank_up":
            self.rank_up[str(event.data.get("role")), int(event.data.get("rank", -1))] = event.time
        elif event.kind == "job_running" and self.running_since is None:
            self.running_since = event.time
        elif event.kind == "resized":
            self._resized = event.time

    def steps(self, lines: Iterable[StepMetrics]) -> None:
        """Add lines of metrics."""
        for line in lines:
            self.finished = max(self.finished, line.step + 1)
            self.last_time = line.time
            for name, value in line.values.items():
                self.series.setdefault(name, Series()).add(line.step, float(value), max(1, line.steps))
            self.staleness |= line.staleness
            left_out = sum(metrics.get("rows_left_out", 0.0) for metrics in line.operators.values())
            self.left_out += left_out * line.steps
            for name in self.kept:
                if name in line.records:
                    now = (line.step, line.records[name])
                    self.records[name] = (self.records.get(name, (now, now))[0], now)
            for role, times in line.roles.items():
                _add(self.role_totals.get(role) or self.role_totals.setdefault(role, RoleTimes()), times)
            for name, amount in _amounts(line).items():
                self.amounts[name] = self.amounts.get(name, 0.0) + amount
            self._recent.append(line)

    def featured(self) -> list[str]:
        """Return the metrics to show: the wanted ones, or the first few that describe results rather than durations."""
        if self.wanted:
            return [name for name in self.wanted if name in self.series]
        names = [n for n in self.series if not n.endswith(("tokens", "_s"))]
        names.sort(key=lambda name: {"reward": 0, "loss": 1}.get(name, 2))
        return names[:DEFAULT_METRICS]

    def seconds_per_step(self) -> float | None:
        """Return the seconds per step over the recent steps, or over all if the recent ones came in one batch; None
        before the first."""
        lines = self._window()
        elapsed = lines[-1].time - lines[0].time if lines else 0.0
        if elapsed > 0:
            return elapsed / sum(line.steps for line in lines[1:])
        if self.running_since is None or not self.finished or self.last_time <= self.running_since:
            return None
        return (self.last_time - self.running_since) / self.finished

    def seconds_left(self, total: int, now: float) -> float | None:
        """Return the seconds until `total` steps are finished, at the recent speed; None if unknown, or if the job is
        later than that."""
        pace = self.seconds_per_step()
        if pace is None:
            return None
        left = (total - self.finished) * pace - max(0.0, now - self.last_time)
        return left if left >= 0 else None

    def rates(self) -> dict[str, float]:
        """Return the recent tokens per second, by name."""
        lines = self._window()
        elapsed = lines[-1].time - lines[0].time if lines else 0.0
        if elapsed <= 0:
            return self.mean_rates()
        amounts = [_amounts(line) for line in lines[1:]]
        names = dict.fromkeys(name for each in amounts for name in each)
        return {name: sum(each.get(name, 0.0) for each in amounts) / elapsed for name in names}

    def mean_rates(self) -> dict[str, float]:
        """Return the tokens per second over the whole run, by name."""
        elapsed = self.last_time - self.running_since if self.running_since is not None else 0.0
        return {name: amount / elapsed for name, amount in self.amounts.items()} if elapsed > 0 else {}

    def shares(self, *, recent: bool) -> dict[str, tuple[float, float, float, float]]:
        """Return, by role, the shares of computing, waiting for input, blocked on credit, and the rest.

        They are shares of the elapsed time. A role that starts again, may not run further yet, or is done has a large
        rest.
        """
        totals = self.role_totals
        elapsed = self.last_time - self.running_since if self.running_since is not None else 0.0
        lines = self._window()
        if recent and lines and lines[-1].time > lines[0].time:
            totals, elapsed = {}, lines[-1].time - lines[0].time
            for line in lines[1:]:
                for role, times in line.roles.items():
                    _add(totals.setdefault(role, RoleTimes()), times)
        shares = {}
        for role, times in totals.items():
            busy = times.computing_s + times.waiting_s + times.blocked_s
            if busy > 0:
                whole = max(busy, elapsed)
                parts = times.computing_s / whole, times.waiting_s / whole, times.blocked_s / whole
                shares[role] = (*parts, 1 - busy / whole)
        return shares

    def _window(self) -> list[StepMetrics]:
        """Return the recent lines, of those since the last resize if there are two. The first one only marks the start
        of the others. The first steps of the job are left out."""
        lines = list(self._recent)
        since = [line for line in lines if line.time > self._resized]
        return since if len(since) > 1 else lines if len(lines) > 1 else []


def _add(total: RoleTimes, part: RoleTimes) -> None:
    total.computing_s += part.computing_s
    total.waiting_s += part.waiting_s
    total.blocked_s += part.blocked_s


def _amounts(line: StepMetrics) -> dict[str, float]:
    """Return the totals of all steps of a line."""
    amounts: dict[str, float] = {}
    for metrics in line.operators.values():
        for name, value in metrics.items():
            if name.endswith("tokens") and math.isfinite(value):
                amounts[name] = amounts.get(name, 0.0) + value * line.steps
    return amounts
