"""Which difference between two steps explains most of the change of the mean reward. Pure.

The change of a mean is the sum of two parts: rows moved from one value of an attribute to another, and the rows of a
value changed (Kitagawa, Components of a difference between two rates, 1955).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import pvariance
from typing import NamedTuple

from rolemesh_view.entries import Entry

__all__ = ["Explanation", "explanation", "may_be_chance"]

CHANCE, MANY = 2.0, 3.0
"""Number of standard errors below which a difference may be chance; the second one for `MANY_VALUED` attributes, among
whose values some differ by chance."""
MANY_VALUED = ("task", "group", "tokens")
LEAST = 1 / 3
"""Share of the change that a difference must explain to be named."""
ALIKE = 0.1
"""Differences whose shares are closer than this explain equally much: the first one of `_attributes` counts."""
COINCIDENCE = 0.5
"""Share that a difference explains at most if no row of one step is like a row of the other: all else changed, too."""
OLDER = 2
"""Minimum number of steps by which weights must be older to count where all rows of a step have weights of one age."""
BINS = 4
USUAL = ("", "finished", "0")
"""Values of attributes that say that nothing is wrong: another one is named if it helped."""


class Explanation(NamedTuple):
    """The rows with one value of an attribute, and the share of the change that they, or all its values, explain.

    `attribute` is end, error, empty, odd, age, task, group or tokens. `rows` and `mean` are pairs: before, and now; a
    mean is None without rows. `share` is from `LEAST` to 1. For ``age`` the weights of the rows were first used `value`
    steps before; for ``tokens`` `value` is a range, such as "more than 100".
    """

    attribute: str
    value: str
    share: float
    rows: tuple[int, int]
    mean: tuple[float | None, float | None]


class _Value(NamedTuple):
    """The rewards of the rows with a value, before and now."""

    before: list[float]
    now: list[float]


def explanation(before: Sequence[Entry], now: Sequence[Entry], ages: Mapping[int, int]) -> Explanation | None:
    """Return what explains most of the change from `before` to `now`; None if what does may be chance.

    All rows have rewards. `ages` has the first step of each version of the weights.
    """
    change = _mean(_rewards(now)) - _mean(_rewards(before))
    if not change:
        return None
    found = []
    for name, closed, value_of in _attributes([*before, *now], ages):
        values = _split(before, now, value_of)
        if len(values) > 1:
            explain = _mixed if closed else _single
            share, value = explain(values, len(before), len(now), change)
            one = values[value]
            least = MANY if name in MANY_VALUED else CHANCE
            far = _moved(values, value, (len(before), len(now)), least) if closed else _changed(one, before, least)
            if not far or (name == "age" and not _is_older(values)):
                continue
            means = tuple(_mean(each) if each else None for each in one)
            found.append(Explanation(name, value, min(1.0, share), (len(one.before), len(one.now)), means))  # type: ignore[arg-type]
    most = max((each.share for each in found), default=0.0)
    return next((each for each in found if each.share >= max(LEAST, most - ALIKE)), None)


def may_be_chance(before: Sequence[Entry], now: Sequence[Entry]) -> bool:
    """Return whether the means of two steps differ so little for their numbers of rows that it may be chance."""
    return not _differ(_rewards(before), _rewards(now), CHANCE)


def _moved(values: Mapping[str, _Value], value: str, rows: tuple[int, int], least: float) -> bool:
    """Return whether more or fewer rows have a value than chance allows, and other rewards than the other rows."""
    had, has = (
        [1.0] * len(each) + [0.0] * (number - len(each)) for each, number in zip(values[value], rows, strict=True)
    )
    its = [reward for each in values[value] for reward in each]
    others = [reward for name, each in values.items() if name != value for reward in (*each.before, *each.now)]
    return _differ(had, has, least) and _differ(its, others, least)


def _changed(one: _Value, before: Sequence[Entry], least: float) -> bool:
    """Return whether the rewards of a value differ more than chance allows: from before, or from all if it is new."""
    return _differ(one.before or _rewards(before), one.now, least) if one.now else False


def _differ(before: Sequence[float], now: Sequence[float], least: float) -> bool:
    """Return whether two means are `least` standard errors apart, if the values of both had one distribution."""
    spread = pvariance([*before, *now]) * (1 / len(before) + 1 / len(now))
    return abs(_mean(now) - _mean(before)) > least * math.sqrt(spread)


def _attributes(
    rows: Sequence[Entry], ages: Mapping[int, int]
) -> Iterable[tuple[str, bool, Callable[[Entry], str | None]]]:
    """Return name, whether both steps should have the same few values, and the value of a row. None: it has none."""
    lengths = sorted(row.said.tokens for row in rows if row.said.tokens is not None)
    edges = sorted({lengths[len(lengths) * part // BINS] for part in range(1, BINS)} - {lengths[-1]} if lengths else ())

    def age(row: Entry) -> str | None:
        return None if row.said.version is None else str(row.step - ages[row.said.version])

    def tokens(row: Entry) -> str | None:
        return None if row.said.tokens is None else _range(edges, row.said.tokens)

    return (
        ("odd", True, lambda row: row.said.odd or ""),
        ("error", True, lambda row: "error" if row.said.error is not None else ""),
        ("end", True, lambda row: row.said.end),
        ("empty", True, lambda row: "empty" if row.said.empty else ""),
        ("age", True, age),
        ("task", False, lambda row: row.said.task),
        ("group", False, lambda row: row.said.group),
        ("tokens", True, tokens),
    )


def _split(before: Sequence[Entry], now: Sequence[Entry], value_of: Callable[[Entry], str | None]) -> dict[str, _Value]:
    """Return the rewards by value; nothing if a row has no value."""
    values: dict[str, _Value] = {}
    for at, rows in enumerate((before, now)):
        for row in rows:
            value = value_of(row)
            if value is None:
                return {}
            assert row.said.reward is not None, "the caller chose rows with rewards"
            values.setdefault(value, _Value([], []))[at].append(row.said.reward)
    return values


def _mixed(values: Mapping[str, _Value], before: int, now: int, change: float) -> tuple[float, str]:
    """Return the share of the change that comes from rows that moved between values, and the value that did most."""
    means = {value: (_mean(each.before or each.now), _mean(each.now or each.before)) for value, each in values.items()}
    moved = {value: len(each.now) / now - len(each.before) / before for value, each in values.items()}
    level = _mean([reward for each in values.values() for reward in (*each.before, *each.now)])
    parts = {value: moved[value] * (sum(means[value]) / 2 - level) / change for value in values}
    share = sum(parts.values())
    if not any(each.before and each.now for each in values.values()):
        share = min(share, COINCIDENCE)
    return share, max(parts, key=lambda value: (value not in USUAL and parts[value] > 0, parts[value], moved[value]))


def _single(values: Mapping[str, _Value], before: int, now: int, change: float) -> tuple[float, str]:
    """Return what one value explains beyond its share of the rows, and the value: 0 if all rows changed alike.

    If each step has one value, and another one, that is a coincidence.
    """
    level = _mean([reward for each in values.values() for reward in each.before])
    best = (COINCIDENCE, next(value for value, each in values.items() if each.now))
    if any(each.before and each.now for each in values.values()) or len(values) > 2:
        best = (0.0, best[1])
    for value, each in values.items():
        part = sum(reward - level for reward in each.now) / now - sum(reward - level for reward in each.before) / before
        usual = max(len(each.before) / before, len(each.now) / now)
        if usual < 1:
            best = max(best, ((part / change - usual) / (1 - usual), value))
    return best


def _is_older(values: Mapping[str, _Value]) -> bool:
    """Return whether ages tell rows apart: some do within a step, or all weights are older by some steps."""
    before, now = ([int(age) for age, each in values.items() if each[at]] for at in (0, 1))
    return bool(set(before) & set(now)) or min(now) - max(before) >= OLDER or min(before) - max(now) >= OLDER


def _range(edges: Sequence[int], length: int) -> str:
    """Return the part of a length, of those that `edges` divide; an edge belongs to the part below it."""
    at = bisect_left(edges, length)
    if not at:
        return f"at most {edges[0]}" if edges else "any"
    return f"more than {edges[-1]}" if at == len(edges) else f"{edges[at - 1] + 1} to {edges[at]}"


def _rewards(rows: Iterable[Entry]) -> list[float]:
    return [row.said.reward for row in rows if row.said.reward is not None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
