"""What a reader asks of a run first: does it learn, how fast is it, and when does it end? Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final, NamedTuple

from rolemesh.api.observer import RankStatus, StepMetrics
from rolemesh_facts.run import Summary
from rolemesh_facts.series import Points

__all__ = [
    "HEADLINES",
    "Fall",
    "Pace",
    "Trend",
    "by_importance",
    "headlines",
    "largest_fall",
    "leading",
    "pace_of",
    "seconds_per_step",
    "trend",
    "under_way",
]

GOALS: Final = ("reward", "rewards", "score", "return", "success", "accuracy", "loss")
"""Names of metrics that say how good a model is, the most telling first."""
HEALTH: Final = ("kl", "entropy", "grad_norm", "logprob_diff", "clip_fraction", "ratio", "lr")
"""Names of metrics that say whether training is in order, the most telling first."""
EVALUATION: Final = ("eval_", "eval/", "evaluation", "val_", "validation")
"""Beginnings of the names of metrics of an evaluation."""
HEADLINES: Final = 3
"""Maximum number of metrics that the first page shows."""
NOISE: Final = 2.0
"""Number of standard errors by which two means differ if a metric changes."""


class Fall(NamedTuple):
    """A metric's value at `step`, and the one before."""

    step: int
    before: float
    after: float


class Trend(NamedTuple):
    """Means over the first and the last third of a metric's steps. `word`: rises, falls, or stays."""

    first: float
    last: float
    word: str


class Pace(NamedTuple):
    """Seconds since the begin, per step, and until the last step; None for what is not known."""

    elapsed: float | None
    step: float | None
    left: float | None


def by_importance(names: Iterable[str]) -> list[str]:
    """Return the names of metrics: goals, evaluations, the health of training, others, amounts, and durations."""
    return sorted(names, key=lambda name: (_class_of(name), name))


def headlines(names: Iterable[str]) -> list[str]:
    """Return the names of the metrics that tell whether a run learns: one of training, then evaluations."""
    ordered = by_importance(names)
    goals = [name for name in ordered if _class_of(name)[0] == 0][:1]
    return (goals + [name for name in ordered if _class_of(name)[0] == 1])[:HEADLINES]


def leading(names: Iterable[str], most: int) -> list[str]:
    """Return the names of at most `most` metrics: the headlines, then the others by importance."""
    ordered = by_importance(names)
    return list(dict.fromkeys([*headlines(ordered), *ordered]))[:most]


def _class_of(name: str) -> tuple[int, int]:
    """Return the place of a metric's name among the others: its class, and its place in the class."""
    low = name.lower()
    if low.startswith(EVALUATION):
        rank = _place(low, GOALS)
        amount = low.endswith(("tokens", "_s", "length")) or "failed" in low
        return (4 if amount else 1), rank
    goal = _place(low, GOALS)
    if goal < len(GOALS):
        return 0, 2 * goal + (low != GOALS[goal])
    health = _place(low, HEALTH)
    if health < len(HEALTH):
        return 2, health
    return (5 if low.endswith("_s") else 4 if low.endswith("tokens") else 3), 0


def _place(name: str, known: Sequence[str]) -> int:
    """Return the place of the first known word that is a part of the name between ``_``, ``/``, ``.`` or ``-``."""
    words = set(name.replace("/", "_").replace(".", "_").replace("-", "_").split("_"))
    return next((at for at, word in enumerate(known) if word == name or set(word.split("_")) <= words), len(known))


def trend(points: Points, lengths: Mapping[int, int] = MappingProxyType({})) -> Trend | None:
    """Return how a metric changes from the first to the last third of its steps; None if so few values do not say.

    `lengths` has the number of steps that a value stands for, by its step; 1 for others. It stays if the means differ
    by less than `NOISE` standard errors of their difference, unless each value is larger, or each is smaller, than the
    one before. Of thirds of one value no error is known: then only values in order are a trend, or equal ones.
    """
    known = [(value, lengths.get(step, 1)) for step, value in zip(*points, strict=True) if math.isfinite(value)]
    if len(known) < 3:
        return None
    first, last = _third(known), _third(known[::-1])
    one, other = _mean(first), _mean(last)
    error = math.sqrt(_variance(first) / len(first) + _variance(last) / len(last))
    values = [value for value, _ in known]
    ordered = values in (sorted(values), sorted(values, reverse=True))
    if len(first) == len(last) == 1:
        if not ordered:
            return None
        changed = one != other
    else:
        changed = abs(other - one) > NOISE * error or (ordered and len(set(values)) == len(values))
    return Trend(one, other, ("rises" if other > one else "falls") if changed else "stays")


def largest_fall(points: Points) -> Fall | None:
    """Return the largest fall of a metric from one value to the next; None if it never falls."""
    known = [(step, value) for step, value in zip(*points, strict=True) if math.isfinite(value)]
    falls = [Fall(step, was, value) for (_, was), (step, value) in pairwise(known) if value < was]
    return max(falls, key=lambda each: each.before - each.after, default=None)


def seconds_per_step(lines: Sequence[StepMetrics]) -> float | None:
    """Return the seconds per step over lines of metrics (`RunFacts.paced`); None with fewer than two, or without
    time."""
    elapsed = lines[-1].time - lines[0].time if len(lines) > 1 else 0.0
    steps = sum(max(1, line.steps) for line in lines[1:])
    return elapsed / steps if elapsed > 0 and steps else None


def pace_of(lines: Sequence[StepMetrics], summary: Summary, now: float | None) -> Pace:
    """Return how long a run takes, at the time `now`; None for a job that has ended, which has no time left.

    Neither has a job without a last step, and one whose present step already takes longer than all that are left.
    """
    step = seconds_per_step(lines)
    last = lines[-1].time if lines else summary.began
    elapsed = (summary.ended or now or last) - summary.began if summary.began else None
    left = None
    if now is not None and step is not None and summary.steps is not None:
        until = (summary.steps - summary.step - 1) * step - max(0.0, now - last)
        left = until if until > 0 else None
    return Pace(elapsed, step, left)


def under_way(ranks: Iterable[RankStatus]) -> list[str]:
    """Return what each role has done of the operator that it runs, as far as its ranks report it."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for rank in ranks:
        operator, _, progress = rank.doing.rpartition(" ")
        done, slash, total = progress.partition("/")
        if operator and slash and done.isdecimal() and total.isdecimal():
            before = found.get((rank.role, operator), (0, 0))
            found[rank.role, operator] = before[0] + int(done), before[1] + int(total)
    return [f"{role}.{operator}: {done} of {total}" for (role, operator), (done, total) in found.items()]


def _third(known: Sequence[tuple[float, int]]) -> Sequence[tuple[float, int]]:
    """Return the first values that stand for a third of all steps at most, and one at least."""
    third, steps = sum(length for _, length in known) / 3, 0
    for at, (_, length) in enumerate(known):
        steps += length
        if steps > third:
            return known[: max(1, at)]
    return known


def _mean(values: Sequence[tuple[float, int]]) -> float:
    return math.fsum(value * length for value, length in values) / sum(length for _, length in values)


def _variance(values: Sequence[tuple[float, int]]) -> float:
    mean = _mean(values)
    scale = max(abs(value - mean) for value, _ in values) or 1.0  # squares of huge values would overflow
    return math.fsum(((value - mean) / scale) ** 2 for value, _ in values) * scale * scale / max(1, len(values) - 1)
