"""Metrics as series, thinned out and smoothed. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rolemesh.api.observer import StepMetrics

__all__ = ["centred", "exponential", "series", "thinned"]

Points = tuple[list[int], list[float]]


def series(lines: Iterable[StepMetrics]) -> dict[str, Points]:
    """Return steps and values of each metric. A repeated step replaces the earlier one."""
    found: dict[str, dict[int, float]] = {}
    for line in lines:
        for name, value in line.values.items():
            found.setdefault(name, {})[line.step] = value
    return {name: (sorted(points), [points[step] for step in sorted(points)]) for name, points in found.items()}


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
