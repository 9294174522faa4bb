"""Kept rows by step and by group: rewards, faults, degenerate groups, and why the reward changed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import nlargest
from typing import NamedTuple

from rolemesh_facts.row_meaning import FAULTS, LONGEST, REWARDS
from rolemesh_view.entries import Entry
from rolemesh_view.explaining import Explanation, explanation, may_be_chance

__all__ = ["Group", "StepRows", "groups_of", "steps_of", "why_reward"]


class Group(NamedTuple):
    """The kept rows of an operator, a step and a group. `degenerate`: it has at least two rewards, all equal.

    `faults` has the number of rows with each of `FAULTS`. `ratio` is the largest one of its rows. None stands for an
    unknown number.
    """

    op: str
    group: str
    rows: int
    mean: float | None
    low: float | None
    high: float | None
    degenerate: bool
    faults: Mapping[str, int]
    ratio: float | None


class StepRows(NamedTuple):
    """The kept rows of a step. `judged`: groups with at least two rewards, of which `degenerate` teach nothing."""

    step: int
    rows: int
    groups: int
    judged: int
    degenerate: int
    mean: float | None
    faults: Mapping[str, int]


class _Found:
    def __init__(self) -> None:
        self.rows: list[Entry] = []
        self.rewards: list[float] = []

    @property
    def judged(self) -> bool:
        return len(self.rewards) > 1

    @property
    def degenerate(self) -> bool:
        return self.judged and min(self.rewards) == max(self.rewards)


def groups_of(rows: Iterable[Entry]) -> list[Group]:
    """Return the groups of `rows`, by operator and group. Rows without the column `group` have none."""
    found = []
    for (_, op, group), each in sorted(_gathered(rows).items(), key=lambda item: (item[0][1], _order(item[0][2]))):
        ratios = [row.ratio for row in each.rows if row.ratio is not None]
        found.append(
            Group(
                op, group, len(each.rows), _mean(each.rewards), min(each.rewards, default=None),
                max(each.rewards, default=None), each.degenerate, _faults(each.rows),
                max(ratios, default=None),
            )
        )  # fmt: skip
    return found


def steps_of(rows: Iterable[Entry], most: int) -> list[StepRows]:
    """Return the `most` newest steps of `rows`, the newest first."""
    steps: dict[int, list[Entry]] = {}
    for row in rows:
        steps.setdefault(row.step, []).append(row)
    found = []
    for step in nlargest(most, steps):
        groups = _gathered(steps[step]).values()
        rewards = [row.said.reward for row in steps[step] if row.said.reward is not None]
        found.append(
            StepRows(
                step, len(steps[step]), len(groups), sum(each.judged for each in groups),
                sum(each.degenerate for each in groups), _mean(rewards),
                _faults(steps[step]),
            )
        )  # fmt: skip
    return found


def why_reward(rows: Iterable[Entry], step: int, means: Mapping[int, float]) -> str | None:
    """Return how a step's rewards differ from those of the step before, and the difference of their rows that explains
    most; None if there is no step to compare with.

    `means` has the metric of the reward by step, which covers all rows. `rows` are the kept ones.
    """
    said = []
    if step in means and (last := max((each for each in means if each < step), default=None)) is not None:
        said.append(f"The metric {REWARDS[0]} {_moved(means[last], means[step])}, from step {last} to step {step}.")
    past = [row for row in rows if row.step <= step]
    judged = [row for row in past if row.said.reward is not None or row.said.odd in REWARDS]
    before = max((row.step for row in judged if row.step < step), default=None)
    here, there = ([row for row in judged if row.step == each] for each in (step, before))
    if not here or not there:
        return said[0] if said else None
    now, then = ([row for row in each if row.said.reward is not None] for each in (here, there))
    if len(now) < len(here):
        said.append(
            f"{len(here) - len(now)} of {len(here)} kept rows of step {step} have no number as reward, "
            f"before {len(there) - len(then)} of {len(there)}."
        )
    if not now or not then:
        return " ".join(said)
    was, become = (sum(row.said.reward or 0.0 for row in each) / len(each) for each in (then, now))
    said.append(
        f"The mean reward of the kept rows {_moved(was, become)}, from step {before} ({len(then)} rows) to step {step} "
        f"({len(now)} rows)."
    )
    ages: dict[int, int] = {}
    for row in past:
        if row.said.version is not None:
            ages[row.said.version] = min(row.step, ages.get(row.said.version, row.step))
    found = explanation(then, now, ages)
    if found is not None:
        said.append(_because(found, len(then), len(now), next((row.said.error for row in now if row.said.error), "")))
    elif was != become:
        chance = may_be_chance(then, now)
        said.append(
            "With so few rows that may be chance." if chance
            else "Ends, errors, lengths, groups, tasks and weights explain less than a third of it."
        )  # fmt: skip
    return " ".join(said)


def _because(found: Explanation, before: int, now: int, error: str) -> str:
    """Return an explanation as a sentence. `before` and `now` are all rows; `error` is an error of this step."""
    was, is_now = found.rows
    value = found.value
    which = {
        "odd": f"had no number in {value}" if value else "had numbers in all columns",
        "error": "had an error" if value else "had no error",
        "end": "were truncated" if value == "truncated" else f'ended as "{value}"',
        "empty": "had an empty completion" if value else "had a completion",
        "age": f"had weights that were first used {value} step{'s' * (value != '1')} before",
        "task": f'had the task "{value}"',
        "group": f"were of the group {value}",
        "tokens": f"had {value} tokens",
    }[found.attribute]
    rewards = [
        f"{mean:.4g}{when}" for mean, when in zip(found.mean, (" before", " now"), strict=True) if mean is not None
    ]
    shown = f' (such as "{error}")' if error and found.attribute == "error" and value else ""
    return (
        f"What explains most, {found.share:.0%} of it: {is_now} of {now} rows {which}{shown}, "
        f"before {was} of {before}; their mean reward is {', '.join(reversed(rewards))}."
    )


def _moved(was: float, now: float) -> str:
    before, after = f"{was:.4g}", f"{now:.4g}"
    if before == after:
        return f"stayed at {after}"
    fell = "fell" if now < was else "rose" if now > was else "went"  # NaN is neither less nor more
    return f"{fell} from {before} to {after}"


def _gathered(rows: Iterable[Entry]) -> dict[tuple[int, str, str], _Found]:
    groups: dict[tuple[int, str, str], _Found] = {}
    for row in rows:
        if row.said.group is not None and len(row.said.group) <= LONGEST:
            each = groups.setdefault((row.step, row.op, row.said.group), _Found())
            each.rows.append(row)
            each.rewards += [] if row.said.reward is None else [row.said.reward]
    return groups


def _faults(rows: Iterable[Entry]) -> dict[str, int]:
    found = [row.said for row in rows]
    return {name: sum(map(has, found)) for name, has in FAULTS.items()}


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _order(group: str) -> tuple[int, str]:
    return (int(group) if group.isdecimal() and len(group) < 19 else 1 << 62, group)
