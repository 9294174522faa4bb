"""Counters from accounts: shares and rates in equal intervals. Pure."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["MOST", "interval", "rates"]

MOST = 3600
"""Maximum number of intervals of a counter."""


def interval(begin: int, end: int) -> int:
    """Return the length of the intervals between two times: a second, or more if there would be more than `MOST`.

    All are in µs.
    """
    return max(1_000_000, -(-(end - begin) // MOST))


def rates(amounts: Iterable[tuple[int, int, float]], width: int) -> list[tuple[int, float]]:
    """Return the amount per µs, at the begin of each interval of `width` µs in which it changes.

    `amounts` are a time, a duration and the amount within it, which is spread evenly. In gaps the rate is 0.
    """
    sums: dict[int, list[float]] = {}
    for began, took, amount in amounts:
        at, end = began, began + took
        while at < end:
            until = min(end, (at // width + 1) * width)
            found = sums.setdefault(at // width, [0.0, 0.0])
            found[0] += amount * (until - at) / took
            found[1] += until - at
            at = until
    result: list[tuple[int, float]] = []
    for place in sorted({*sums, *(place + 1 for place in sums)}):
        amount, time = sums.get(place, (0.0, 1.0))
        if not result or result[-1][1] != amount / time:
            result.append((place * width, amount / time))
    return result
