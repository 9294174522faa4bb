"""A metric as the lines of a small picture: each value, and the mean of the steps around each one. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from rolemesh_facts.series import Points, centred, thinned

__all__ = ["LEFT", "Curve", "curve_of"]

LEFT, TOP, RIGHT, BOTTOM = 52, 10, 10, 22
"""Pixels around the lines, for the axes and their texts."""
MOST = 600
"""About the number of points that a line is drawn with. All figures are those of all points."""


class Curve(NamedTuple):
    """Lines as SVG paths in a picture of `width` by `height` pixels.

    `raw` has each value; a value that is not finite is a gap, and `odd` counts them. `mean` has the means of `around`
    values; "" for too few. Both are "" without a finite value. `low` and `high` are the ends of the vertical axis,
    `first` and `last` the steps at those of the horizontal one. The right end of the axis is at `right`, its height at
    `floor`.
    """

    width: int
    height: int
    raw: str
    mean: str
    around: int
    low: float
    high: float
    first: int
    last: int
    odd: int
    right: int
    floor: int
    top: int = TOP
    left: int = LEFT


def curve_of(
    points: Points,
    width: int,
    height: int,
    bounds: tuple[float, float] | None = None,
    *,
    until: int = -1,
    smooth: bool = True,
) -> Curve:
    """Return the lines of a metric. `bounds` are the ends of the vertical axis; None for those of the values.

    The horizontal axis ends at the step `until`, if the values end before it. `smooth`: there is a mean.
    """
    steps, values = points
    finite = [value for value in values if math.isfinite(value)]
    around = max(3, len(values) // 10) | 1
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    if low == high:
        low, high = low - (abs(low) or 1.0) * 0.1, high + (abs(high) or 1.0) * 0.1
    low, high = bounds or (low, high)
    first, last = (steps[0], max(steps[-1], until)) if steps else (0, 0)
    right, floor, span = width - RIGHT, height - BOTTOM, max(1, last - first)

    def line(heights: list[float]) -> str:
        way, pen = [], "M"
        for step, value in zip(*thinned((steps, heights), MOST), strict=True):
            if not math.isfinite(value):
                pen = "M"
                continue
            x = LEFT + (step - first) / span * (right - LEFT)
            way.append(f"{pen}{x:.1f},{TOP + (high - value) / (high - low) * (floor - TOP):.1f}")
            pen = "L"
        if len(way) == 1:  # a line without length would be invisible
            way.append("h3")
        return "".join(way)

    mean = line(centred(values, around)) if smooth and finite and len(values) > around else ""
    raw = line(values) if finite else ""
    odd = len(values) - len(finite)
    return Curve(width, height, raw, mean, around, low, high, first, last, odd, right, floor)
