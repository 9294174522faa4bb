"""Metrics as series, thinned out and smoothed. Pure."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence

from rolemesh.api.observer import StepMetrics

__all__ = ["Collected", "centred", "exponential", "thinned"]

Points = tuple[list[int], list[float]]
LIMIT = 1 << 62
"""Steps at or beyond this are damage."""


class Collected:
    """Steps and values of each metric, in 16 bytes per value. A repeated step replaces the earlier one."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[array[int], array[float]]] = {}

    def add(self, line: StepMetrics) -> None:
        """Add the values of a line."""
        if not -LIMIT < line.step < LIMIT:
            return
        for name, value in line.values.items():
            steps, values = self._found.setdefault(name, (array("q"), array("d")))
            if not steps or line.step > steps[-1]:
                steps.append(line.step)
                values.append(value)
                continue
            at = bisect_left(steps, line.step)
            if steps[at] == line.step:
                values[at] = value
            else:
                steps.insert(at, line.step)
                values.insert(at, value)

    def names(self) -> list[str]:
        """Return the names of the metrics, sorted."""
        return sorted(self._found)

    def points(self, name: str) -> Points:
        """Return steps and values of a metric; none if there is no such metric."""
        steps, values = self._found.get(name, ((), ()))
        return list(steps), list(values)


def thinned(points: Points, most: int) -> Points:
    """Return at most about `most` points: of each bucket of steps the smallest and the largest value, NaN included."""
    steps, values = points
    if len(steps) <= most or most < 4:
        return points
    width = math.ceil(len(steps) / (most // 2))
    kept: list[int] = []
    for first in range(0, len(steps), width):
        group = range(first, min(first + width, len(steps)))
        odd = [at for at in group if not math.isfinite(values[at])]
        fine = [at for at in group if math.isfinite(values[at])]
        ends = {min(fine, key=values.__getitem__), max(fine, key=values.__getitem__)} if fine else set()
        kept += sorted(ends | set(odd[:1]))
    return [steps[at] for at in kept], [values[at] for at in kept]


def exponential(values: Sequence[float], share: float) -> list[float]:
    """Return an exponential moving average; `share` (0 to 1) is the weight of the past. Non-finite values stay."""
    result, mean, weight = [], 0.0, 0.0
    for value in values:
        if not math.isfinite(value):
            result.append(value)
            continue
        mean, weight = share * mean + (1 - share) * value, share * weight + (1 - share)
        result.append(mean / weight)
    return result


def centred(values: Sequence[float], width: int) -> list[float]:
    """Return the mean of the `width` values around each one; fewer at both ends, so that no end is pulled along."""
    half, result = width // 2, []
    for at in range(len(values)):
        reach = min(half, at, len(values) - 1 - at)
        near = [value for value in values[at - reach : at + reach + 1] if math.isfinite(value)]
        result.append(sum(near) / len(near) if near and math.isfinite(values[at]) else values[at])
    return result
