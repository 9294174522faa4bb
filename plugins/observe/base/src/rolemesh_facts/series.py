"""Metrics as series, read, thinned out and smoothed."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from rolemesh.api.observer import StepMetrics
from rolemesh.runs.jsonl import UNDECODABLE, open_regular, read_metrics

__all__ = ["Collected", "centred", "exponential", "read_values", "thinned"]

Points = tuple[list[int], list[float]]
Place = TypeVar("Place", int, float)
BEHIND_VALUES: Final = b',"operators":{'
"""The key behind the values in a line of ``metrics.jsonl``. Within a text, quotation marks look different."""
_VALUES = msgspec.json.Decoder(dict[str, int | float | None])
LIMIT = 1 << 62
"""Steps at or beyond this are damage."""


def read_values(path: Path, after: int, start: int) -> Iterator[StepMetrics]:
    """Yield what `read_metrics` yields, but without times of operators and roles. This is three times as fast.

    Lines begin with the values. From the first line on that does not, `read_metrics` reads all.
    """
    with suppress(FileNotFoundError), open_regular(path) as file:
        file.seek(start)
        for raw in file:
            end = raw.find(BEHIND_VALUES)
            if end < 0 or not raw.endswith(b"}\n"):
                break
            try:
                found = _VALUES.decode(raw[:end] + b"}")
                step, steps, seconds = (
                    int(found.pop("step") or 0),
                    int(found.pop("steps") or 0),
                    found.pop("time") or 0.0,
                )
            except (*UNDECODABLE, KeyError, ValueError):
                break
            start += len(raw)
            if step > after:
                values = {name: math.nan if value is None else value for name, value in found.items()}
                yield StepMetrics(step, steps, seconds, values, {}, {}, {}, {})
        else:
            return
        yield from read_metrics(path, after, start)


class Collected:
    """Steps and values of each metric, in 16 bytes per value. A repeated step replaces the earlier one."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[array[int], array[float]]] = {}

    def add(self, line: StepMetrics) -> None:
        """Add the values of a line."""
        if not -LIMIT < line.step < LIMIT:
            return
        for name, value in line.values.items():
            found = self._found.get(name)
            if found is None:
                found = self._found[name] = array("q"), array("d")
            steps, values = found
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

    def points(self, name: str, most: int = 0) -> Points:
        """Return steps and values of a metric, the last `most` ones (0: all); none if there is no such metric."""
        steps, values = self._found.get(name, ((), ()))
        return list(steps[-most:]), list(values[-most:])


def thinned(points: tuple[list[Place], list[float]], most: int) -> tuple[list[Place], list[float]]:
    """Return at most about `most` points: of each bucket of steps the smallest and the largest value, NaN included, and
    the last one."""
    steps, values = points
    if len(steps) <= most or most < 4:
        return points
    width = math.ceil(len(steps) / (most // 2))
    kept: list[int] = []
    end = len(steps) - 1
    for first in range(0, len(steps), width):
        group = range(first, min(first + width, len(steps)))
        odd = [at for at in group if not math.isfinite(values[at])]
        fine = [at for at in group if math.isfinite(values[at])]
        ends = {min(fine, key=values.__getitem__), max(fine, key=values.__getitem__)} if fine else set()
        kept += sorted(ends | set(odd[:1]) | ({end} if end in group else set()))
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
    """Return the mean of the `width` values around each one; fewer at both ends, so that no end is pulled along.

    Its price does not depend on `width`. Sums have twice the usual digits, so a huge value does not disturb the means
    of small ones (Knuth, The Art of Computer Programming 2, section 4.2.2, theorem B).
    """
    half, result = width // 2, list(values)
    finite = [value if math.isfinite(value) else 0.0 for value in values]
    counts = list(accumulate(map(math.isfinite, values), initial=0))
    sums = list(accumulate(finite, _add, initial=(0.0, 0.0)))
    for at, value in enumerate(values):
        reach = min(half, at, len(values) - 1 - at)
        (low, low_rest), (high, high_rest) = sums[at - reach], sums[at + reach + 1]
        number = counts[at + reach + 1] - counts[at - reach]
        mean = ((high - low) + (high_rest - low_rest)) / number if number else math.nan
        if math.isfinite(value) and math.isfinite(mean):  # the sum of huge values may be infinite
            result[at] = mean
    return result


def _add(total: tuple[float, float], value: float) -> tuple[float, float]:
    """Return a sum and what rounding has taken from it."""
    high, rest = total
    new = high + value
    part = new - high
    return new, rest + ((high - (new - part)) + (value - part))
