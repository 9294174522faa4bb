"""Kept rows by step and by group: rewards, degenerate groups, and the ratio of the policies. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rolemesh.api.rank_ref import RankRef
from rolemesh_recorder.rows import Row
from rolemesh_view.tokens import is_truncated, numbers_of

__all__ = ["Group", "StepRows", "groups_of", "policies_of", "ratio_of", "steps_of"]

REWARDS = ("reward", "rewards", "score")
"""Columns that may have a row's reward; the first one counts."""
PAIRS = (
    ("old_logprobs", "sampler_logprobs"), ("logprobs", "sampler_logprobs"), ("old_logprobs", "logprobs"),
    ("trainer_logprobs", "logprobs"),
)  # fmt: skip
"""Columns with the log-probabilities of the trainer and of the sampler; the first pair that a row has counts."""
GROUP, LONGEST = "group", 100
"""The column with a row's group, and the maximum length of its text."""


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
        self.rows: list[Row] = []
        self.rewards: list[float] = []

    @property
    def judged(self) -> bool:
        return len(self.rewards) > 1

    @property
    def degenerate(self) -> bool:
        return self.judged and min(self.rewards) == max(self.rewards)


def policies_of(columns: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the names of a row's columns with the trainer's and the sampler's log-probabilities; None without both."""
    for trainer, sampler in PAIRS:
        one, other = columns.get(trainer), columns.get(sampler)
        if isinstance(one, list) and isinstance(other, list) and one and len(one) == len(other):
            return trainer, sampler
    return None


def ratio_of(columns: Mapping[str, Any]) -> float | None:
    """Return the largest ratio of a token's probabilities at trainer and sampler, whichever is larger, at least 1.

    None if the row lacks one of them, or has no finite one.
    """
    names = policies_of(columns)
    if names is None:
        return None
    pairs = zip(numbers_of(columns[names[0]]), numbers_of(columns[names[1]]), strict=True)
    differences = [abs(one - other) for one, other in pairs if math.isfinite(one) and math.isfinite(other)]
    return math.exp(min(700.0, max(differences))) if differences else None


def groups_of(rows: Iterable[tuple[RankRef, Row]]) -> list[Group]:
    """Return the groups of `rows`, by operator and group. Rows without the column `group` have none."""
    found = []
    for (_, op, group), each in sorted(_gathered(rows).items(), key=lambda item: (item[0][1], _order(item[0][2]))):
        ratios = [ratio for row in each.rows if (ratio := ratio_of(row.columns)) is not None]
        found.append(
            Group(
                op, group, len(each.rows), _mean(each.rewards), min(each.rewards, default=None),
                max(each.rewards, default=None), each.degenerate, sum(map(is_truncated, each.rows)),
                max(ratios, default=None),
            )
        )  # fmt: skip
    return found


def steps_of(rows: Iterable[tuple[RankRef, Row]]) -> list[StepRows]:
    """Return the steps of `rows`, the newest first."""
    steps: dict[int, list[tuple[RankRef, Row]]] = {}
    for ref, row in rows:
        steps.setdefault(row.step, []).append((ref, row))
    found = []
    for step in sorted(steps, reverse=True):
        groups = _gathered(steps[step]).values()
        rewards = [reward for _, row in steps[step] if (reward := _reward(row)) is not None]
        found.append(
            StepRows(
                step, len(steps[step]), len(groups), sum(each.judged for each in groups),
                sum(each.degenerate for each in groups), _mean(rewards),
                sum(is_truncated(row) for _, row in steps[step]),
            )
        )  # fmt: skip
    return found


def _gathered(rows: Iterable[tuple[RankRef, Row]]) -> dict[tuple[int, str, str], _Found]:
    groups: dict[tuple[int, str, str], _Found] = {}
    for _, row in rows:
        if GROUP in row.columns and len(name := str(row.columns[GROUP])) <= LONGEST:
            each = groups.setdefault((row.step, row.op, name), _Found())
            each.rows.append(row)
            reward = _reward(row)
            each.rewards += [] if reward is None else [reward]
    return groups


def _reward(row: Row) -> float | None:
    for name in REWARDS:
        value = row.columns.get(name)
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    return None


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _order(group: str) -> tuple[int, str]:
    return (int(group) if group.isdecimal() and len(group) < 19 else 1 << 62, group)
