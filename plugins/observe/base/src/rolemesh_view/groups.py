"""Kept rows by step and by group: rewards, degenerate groups, and the ratio of the policies. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rolemesh_view.entries import LONGEST, REWARDS, Entry

__all__ = ["Group", "StepRows", "groups_of", "steps_of", "why_reward"]


class Group(NamedTuple):
    """The kept rows of an operator, a step and a group. `degenerate`: it has at least two rewards, all equal.

    `ratio` is the largest one of its rows. None stands for an unknown number.
    """

    op: str
    group: str
    rows: int
    mean: float | None
    low: float | None
    high: float | None
    degenerate: bool
    truncated: int
    ratio: float | None


class StepRows(NamedTuple):
    """The kept rows of a step. `judged`: groups with at least two rewards, of which `degenerate` teach nothing."""

    step: int
    rows: int
    groups: int
    judged: int
    degenerate: int
    mean: float | None
    truncated: int


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
                max(each.rewards, default=None), each.degenerate, sum(row.truncated for row in each.rows),
                max(ratios, default=None),
            )
        )  # fmt: skip
    return found


def steps_of(rows: Iterable[Entry]) -> list[StepRows]:
    """Return the steps of `rows`, the newest first."""
    steps: dict[int, list[Entry]] = {}
    for row in rows:
        steps.setdefault(row.step, []).append(row)
    found = []
    for step in sorted(steps, reverse=True):
        groups = _gathered(steps[step]).values()
        rewards = [row.reward for row in steps[step] if row.reward is not None]
        found.append(
            StepRows(
                step, len(steps[step]), len(groups), sum(each.judged for each in groups),
                sum(each.degenerate for each in groups), _mean(rewards),
                sum(row.truncated for row in steps[step]),
            )
        )  # fmt: skip
    return found


def why_reward(rows: Iterable[Entry], step: int, means: Mapping[int, float]) -> str | None:
    """Return how a step's rewards differ from those of the step before; None if there is no step to compare with.

    `means` has the metric of the reward by step, which covers all rows. `rows` are the kept ones.
    """
    said = []
    if step in means and (last := max((each for each in means if each < step), default=None)) is not None:
        said.append(f"The metric {REWARDS[0]} {_moved(means[last], means[step])}, from step {last} to step {step}.")
    judged = [row for row in rows if row.reward is not None and row.step <= step]
    before = max((row.step for row in judged if row.step < step), default=None)
    here, there = ([row for row in judged if row.step == each] for each in (step, before))
    if not here or not there:
        return said[0] if said else None
    (now,), (then,) = steps_of(here), steps_of(there)
    assert now.mean is not None, "each of its rows has a reward"
    assert then.mean is not None, "each of its rows has a reward"
    lowest = min(row.reward for row in (*here, *there) if row.reward is not None)
    worst, as_bad = (sum(row.reward == lowest for row in each) for each in (here, there))
    said += [
        f"The mean reward of the kept rows {_moved(then.mean, now.mean)}, from step {before} ({then.rows} rows) to "
        f"step {step} ({now.rows} rows).",
        f"Rows with the lowest reward, {lowest:.4g}: {worst}, before {as_bad}; truncated rows: {now.truncated}, "
        f"before {then.truncated}; degenerate groups: {now.degenerate}, before {then.degenerate}.",
    ]
    return " ".join(said)


def _moved(was: float, now: float) -> str:
    before, after = f"{was:.4g}", f"{now:.4g}"
    return f"stayed at {after}" if before == after else f"{'fell' if now < was else 'rose'} from {before} to {after}"


def _gathered(rows: Iterable[Entry]) -> dict[tuple[int, str, str], _Found]:
    groups: dict[tuple[int, str, str], _Found] = {}
    for row in rows:
        if row.group is not None and len(row.group) <= LONGEST:
            each = groups.setdefault((row.step, row.op, row.group), _Found())
            each.rows.append(row)
            each.rewards += [] if row.reward is None else [row.reward]
    return groups


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _order(group: str) -> tuple[int, str]:
    return (int(group) if group.isdecimal() and len(group) < 19 else 1 << 62, group)
