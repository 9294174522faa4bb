"""Convert metrics and events of a job to what trackers take: numbers by name for a step, and notes. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from rolemesh.api.observer import Event, StepMetrics
from rolemesh_console.sentences import sentence
from rolemesh_tracking.names import distinct

__all__ = ["Line", "Note", "flat", "note"]

NAME_CHARACTERS = 200
"""Maximum number of characters of a metric's name. Trackers refuse longer ones."""
NOTE_CHARACTERS = 4000
TIMES = ("computing_s", "waiting_s", "blocked_s")


class Line(NamedTuple):
    """The metrics of a step: `step` from 0, `time` in seconds since 1970, and the numbers by name. A number is finite
    or NaN.
    """

    step: int
    time: float
    values: dict[str, float]


class Note(NamedTuple):
    """An event that a user wants to see beside the curves.

    `seq` is the number of the event, `step` is the newest step that was finished before it (-1 for none), `time` is in
    seconds since 1970, and `text` is a sentence.
    """

    seq: int
    step: int
    time: float
    kind: str
    text: str


def flat(line: StepMetrics, patterns: Sequence[str]) -> Line:
    """Return the numbers of a line whose names match one of `patterns` (`fnmatch`).

    - ``NAME``: a metric of a workload.
    - ``OPERATOR/NAME``: the metric of one operator, if several operators report the name.
    - ``time/ROLE/computing_s``, ``waiting_s`` and ``blocked_s``: the times of a role, per step.
    - ``staleness/EDGE``: the lag of an edge.

    An infinite value becomes NaN, as in ``metrics.jsonl``. Values that are no numbers are left out. If a workload's own
    metric has one of the last three names, ours gets ``rolemesh/`` before it.
    """
    found = {}
    for name, value in _named(line):
        number = _number(value)
        if number is not None and any(fnmatchcase(name, pattern) for pattern in patterns):
            key = distinct(name, name[:NAME_CHARACTERS] or "_")
            found[key if key not in found else f"rolemesh/{key}"] = number
    return Line(line.step, line.time, found)


def note(event: Event, step: int) -> Note | None:
    """Return an event as a note after `step`; None for an event that can wait or whose data are damaged."""
    try:
        text = sentence(event)
    except Exception:  # the data of an event of another release, or from a damaged file
        return None
    if text is None:
        return None
    return Note(event.seq, step, event.time, event.kind, text[:NOTE_CHARACTERS])


def _named(line: StepMetrics) -> Iterator[tuple[str, object]]:
    yield from line.values.items()
    reporting = Counter(name for metrics in line.operators.values() for name in metrics)
    for label, metrics in line.operators.items():
        yield from ((f"{label}/{name}", value) for name, value in metrics.items() if reporting[name] > 1)
    for role, times in line.roles.items():
        found = ((name, _number(getattr(times, name))) for name in TIMES)
        yield from ((f"time/{role}/{name}", each / max(1, line.steps)) for name, each in found if each is not None)
    yield from ((f"staleness/{edge}", lag) for edge, lag in line.staleness.items())


def _number(value: object) -> float | None:
    try:
        number = float(value) if not isinstance(value, str | bytes) else None  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number is None or math.isfinite(number) else math.nan
