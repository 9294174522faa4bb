"""What ranks have measured: a role's part of a step, several added up, and the line of metrics they make. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from rolemesh.api.observer import RoleTimes, StepMetrics
from rolemesh.graph.logical import LogicalGraph

__all__ = ["LineBuilder", "Metrics", "RankMetrics", "joined"]


class Metrics(msgspec.Struct, frozen=True):
    """A role's part in one line of metrics, summed over the ranks that have contributed.

    `ranks` says how many that are. `means` maps operator label → name → [sum, count], `sums` label → name → sum;
    `times` is [computing, waiting, blocked] in seconds, summed over ranks.
    """

    role: str
    step: int
    steps: int
    ranks: int
    times: list[float]
    means: dict[str, dict[str, list[float]]] = {}
    sums: dict[str, dict[str, float]] = {}
    records: dict[str, Any] = {}


class RankMetrics(msgspec.Struct, frozen=True, tag=True):
    """Lines of metrics of one rank."""

    role: str
    rank: int
    generation: int
    lines: tuple[Metrics, ...]


def _add_into(total: Metrics, part: Metrics) -> None:
    """Add `part` (same role and step) to `total`, in place."""
    for i, seconds in enumerate(part.times):
        total.times[i] += seconds
    for label, values in part.means.items():
        mine = total.means.setdefault(label, {})
        for name, (amount, count) in values.items():
            slot = mine.setdefault(name, [0.0, 0.0])
            slot[0] += amount
            slot[1] += count
    for label, sums in part.sums.items():
        mine_sums = total.sums.setdefault(label, {})
        for name, amount in sums.items():
            mine_sums[name] = mine_sums.get(name, 0.0) + amount
    total.records.update({name: value for name, value in part.records.items() if name not in total.records})


def joined(parts: Sequence[Metrics]) -> Metrics:
    """Several parts of one role and step as one."""
    first, *others = parts
    if others:
        first = msgspec.convert(msgspec.to_builtins(first), Metrics)
    for other in others:
        _add_into(first, other)
    return msgspec.structs.replace(first, ranks=sum(part.ranks for part in parts))


class LineBuilder:
    """From the parts of all roles to the line of a step."""

    def __init__(self, graph: LogicalGraph, world_sizes: Mapping[str, int]) -> None:
        self._world_sizes = dict(world_sizes)
        labels = [op.label for op in graph.ops]
        self._calls = {op.label: f"{op.role}.{op.operator}" for op in graph.ops}
        """The operator of each call, in the flow's order."""
        self._lags = {f"{labels[e.src]} → {labels[e.dst]}": e.lag for e in graph.edges if e.lag}

    def build(self, found: Mapping[str, Sequence[Metrics]], wall: float) -> StepMetrics:
        """The line of one step from each role's parts, together of all its ranks; `wall` is seconds since 1970."""
        parts = {role: joined(each) for role, each in found.items()}
        means: dict[str, dict[str, list[float]]] = {}
        sums: dict[str, dict[str, float]] = {}
        records: dict[str, object] = {}
        roles: dict[str, RoleTimes] = {}
        for role, part in parts.items():
            means |= part.means
            sums |= part.sums
            n = self._world_sizes[role]
            roles[role] = RoleTimes(*(round(seconds / n, 6) for seconds in part.times))
            records |= part.records
        operators = {label: numbers for label in self._calls if (numbers := _numbers([label], means, sums))}
        calls: dict[str, list[str]] = {}
        for label, operator in self._calls.items():
            calls.setdefault(operator, []).append(label)
        values: dict[str, float] = {}
        for labels in calls.values():
            values = _numbers(labels, means, sums) | values
        first = next(iter(parts.values()))
        staleness: dict[str, float] = {label: float(lag) for label, lag in self._lags.items()}
        for label, metrics in operators.items():
            if "staleness" in metrics:
                staleness[label] = metrics["staleness"]
        return StepMetrics(first.step, first.steps, wall, values, operators, roles, staleness, records)


def _numbers(
    labels: Iterable[str], means: Mapping[str, Mapping[str, list[float]]], sums: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """What the calls `labels` of one operator have reported, as if it were one call."""
    amounts: dict[str, list[float]] = {}
    totals: dict[str, float] = {}
    for label in labels:
        for name, (amount, count) in means.get(label, {}).items():
            slot = amounts.setdefault(name, [0.0, 0.0])
            slot[0] += amount
            slot[1] += count
        for name, amount in sums.get(label, {}).items():
            totals[name] = totals.get(name, 0.0) + amount
    return {name: amount / count for name, (amount, count) in amounts.items() if count} | totals
