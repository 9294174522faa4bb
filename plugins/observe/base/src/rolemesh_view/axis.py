"""The horizontal axis of metrics: steps, seconds since the job began, or tokens; and what happened on it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from rolemesh_facts import RunFacts

__all__ = ["AXES", "TOKENS", "apart", "axes_of", "marks_of", "places_of"]

AXES: Final = ("step", "time", "tokens")
"""Names of the axes. Time is in seconds since the job began, and tokens are those that the trainer has used."""
TOKENS: Final = "trained_tokens"
MARKED: Final = ("failure", "resize")
"""Kinds of marks that the axis shows."""
MOST_MARKS = 200


def axes_of(facts: RunFacts) -> list[str]:
    """Return the axes that a run has: tokens only if a trainer counts them."""
    return [name for name in AXES if name != "tokens" or TOKENS in facts.metric_names()]


def places_of(facts: RunFacts, steps: Sequence[int], along: str) -> list[float]:
    """Return where `steps` lie on an axis. A step without a line of metrics lies at the next one that has one."""
    if along == "time":
        lines = facts.metrics()
        began = facts.summary().began
        known, places = [line.step for line in lines], [line.time - began for line in lines]
    elif along == "tokens":
        lengths = facts.lengths()
        known, amounts = facts.points(TOKENS)  # per step of a line
        totals = (amount * lengths.get(step, 1) for step, amount in zip(known, amounts, strict=True))
        places = list(accumulate(total if math.isfinite(total) else 0.0 for total in totals))
    else:
        return list(steps)
    if not known:
        return list(steps)
    return [places[min(bisect_left(known, step), len(known) - 1)] for step in steps]


def apart(places: Sequence[float]) -> list[float]:
    """Return places of which no two are equal: each one that repeats lies at the next number. Lines of quick steps
    have one time, and steps without training one number of tokens."""
    last: dict[float, float] = {}
    found = []
    for place in places:
        last[place] = math.nextafter(last[place], math.inf) if place in last else place
        found.append(last[place])
    return found


def marks_of(facts: RunFacts, along: str) -> list[tuple[float, str]]:
    """Return the latest failures and resizes, each with its place on an axis, in their order."""
    lines = facts.metrics()
    times = list(accumulate((line.time for line in lines), max))  # a clock may step back
    found = [(mark.t / 1e6, mark.text) for mark in facts.marks() if mark.kind in MARKED][-MOST_MARKS:]
    began = facts.summary().began
    if along == "time":
        return [(time - began, text) for time, text in found]
    last = lines[-1].step if lines else 0
    steps = [lines[at].step if (at := bisect_left(times, time)) < len(lines) else last for time, _ in found]
    return [(place, text) for place, (_, text) in zip(places_of(facts, steps, along), found, strict=True)]
