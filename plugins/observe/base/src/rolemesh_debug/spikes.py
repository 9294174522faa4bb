"""Whether a value of a metric is wrong: NaN, infinite, or far from the values before it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

__all__ = ["Usual", "usual", "wrong"]

LEAST_SHARE = 0.01
"""Least deviation that counts, as a share of the median, or a metric that hardly moves would spike at any change."""


class Usual(NamedTuple):
    """The usual values of a metric: the median of `values` values, and their median absolute deviation from it."""

    median: float
    deviation: float
    values: int


def usual(values: Sequence[float]) -> Usual:
    """Return what the finite `values` have in common; at least one of them.

    The deviation is the median absolute deviation (MAD, Hampel 1974), not scaled to a normal distribution.
    """
    middle = median(values)
    deviation = median(abs(value - middle) for value in values)
    return Usual(middle, max(deviation, LEAST_SHARE * abs(middle)), len(values))


def wrong(value: float, before: Usual | None, spike: float | None) -> str:
    """Return what is wrong with a value, in words; "" if nothing is.

    A value spikes if it is more than `spike` deviations above or below the median. Without `before` or `spike`, and if
    the deviation is 0 (all values were 0), only NaN and infinity are wrong.
    """
    if not math.isfinite(value):
        return f"is {value}"
    if before is None or spike is None or not before.deviation:
        return ""
    distance = abs(value - before.median) / before.deviation
    if distance <= spike:
        return ""
    far = f"{distance:,.0f}" if distance >= 100 else f"{distance:.3g}"
    return (
        f"is {value:.6g}, {far} deviations from {before.median:.6g}, the median of the last {before.values} "
        f"values; {spike:g} are allowed"
    )
