"""The measurements of ranks: a role's part of a step, sums of parts, and the line of metrics that
they form. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import add
from typing import TYPE_CHECKING, Any

import msgspec

from rolemesh.api.observer import RoleTimes, StepMetrics
from rolemesh.graph.logical import LogicalGraph
from rolemesh_runtime.served import split_name

if TYPE_CHECKING:
    from rolemesh.api.port import LocalPort


class Metrics(msgspec.Struct, frozen=True, gc=False):
    """A role's part in one line of metrics, summed over the contributing ranks.

    - `ranks`: number of contributing ranks.
    - `means`: operator label → name → [sum, count].
    - `sums`: operator label → name → sum.
    - `times`: [computing, waiting, blocked] in seconds, summed over the ranks.
    """

    role: str
    step: int
    steps: int
    ranks: int
    times: list[float]
    means: dict[str, dict[str, list[float]]] = {}
    sums: dict[str, dict[str, float]] = {}
    records: dict[str, Any] = {}


def collect(port: LocalPort, label: str, line: Metrics) -> None:
    """Move the workload's reports since the last call into `line`, under operator call `label`."""
    for means, sums in ((port.means, port.sums), *port.by_item.values()):
        if means:
            _add_means(line.means.setdefault(label, {}), means)
        if sums:
            _add_sums(line.sums.setdefault(label, {}), sums)
    line.records.update(port.records)
    port.clear()


def joined(parts: Sequence[Metrics]) -> Metrics:
    """Return several parts of one role and step as one."""
    first, *others = parts
    if not others:
        return first
    first = msgspec.convert(msgspec.to_builtins(first), Metrics)
    for part in others:
        first.times[:] = map(add, first.times, part.times)
        for label, means in part.means.items():
            _add_means(first.means.setdefault(label, {}), means)
        for label, sums in part.sums.items():
            _add_sums(first.sums.setdefault(label, {}), sums)
        first.records.update({name: value for name, value in part.records.items() if name not in first.records})
    return msgspec.structs.replace(first, ranks=sum(part.ranks for part in parts))


def _add_means(total: dict[str, list[float]], part: Mapping[str, list[float]]) -> None:
    for name, (amount, count) in part.items():
        slot = total.setdefault(name, [0.0, 0.0])
        slot[0] += amount
        slot[1] += count


def _add_sums(total: dict[str, float], part: Mapping[str, float]) -> None:
    for name, amount in part.items():
        total[name] = total.get(name, 0.0) + amount


class LineBuilder:
    """Builds the line of a step from the parts of all roles."""

    def __init__(self, graph: LogicalGraph, world_sizes: Mapping[str, int]) -> None:
        self._scales = {role: 1e6 / size for role, size in world_sizes.items()}
        """Role → factor that converts seconds over all its ranks to microseconds per rank."""
        labels = [op.label for op in graph.ops]
        self._calls: dict[tuple[str, str], list[str]] = {}
        """The calls of each operator, in the order of the flow, then the services, then the roles that only serve."""
        for op in graph.ops:
            self._calls.setdefault((op.role, op.operator), []).append(op.label)
        self._serves = bool(graph.services)
        services = [(role, name) for role, found in graph.services.items() for name in found]
        self._calls |= {(role, name): [f"{role}.{name}"] for role, name in services}
        self._calls |= {(role, ""): [role] for role in graph.services if not graph.of_role(role)}
        self._labels = list(dict.fromkeys([*labels, *(label for each in self._calls.values() for label in each)]))
        self._lags = {f"{labels[e.src]} → {labels[e.dst]}": float(e.lag) for e in graph.edges if e.lag and not e.newest}

    def build(self, found: Mapping[str, Sequence[Metrics]], wall: float) -> StepMetrics:
        """Return the line of one step. `found` has each role's part over all its ranks; `wall` is
        in seconds since 1970."""
        roles = {}
        said = []
        # Quick steps have many lines, and most of those have times alone: this loop is hot.
        for role, each in found.items():
            part = joined(each)
            a, b, c = part.times
            scale = self._scales[role]
            roles[role] = RoleTimes(int(a * scale + 0.5) / 1e6, int(b * scale + 0.5) / 1e6, int(c * scale + 0.5) / 1e6)
            said += [part] if part.means or part.sums or part.records else []
        means = {label: numbers for one in said for label, numbers in one.means.items()}
        sums = {label: numbers for one in said for label, numbers in one.sums.items()}
        if self._serves:
            means, sums = _with_services(said)
        records = {name: record for one in said for name, record in one.records.items()}
        operators = dict[str, dict[str, float]]()
        values = dict[str, float]()
        staleness = self._lags.copy()
        if means or sums:
            of_calls = ((label, _numbers([label], means, sums, part.steps)) for label in self._labels)
            operators = {label: numbers for label, numbers in of_calls if numbers}
            for labels in self._calls.values():
                values = _numbers(labels, means, sums, part.steps) | values
            staleness |= {label: one["staleness"] for label, one in operators.items() if "staleness" in one}
        return StepMetrics(part.step, part.steps, wall, values, operators, roles, staleness, records)


def _with_services(parts: Iterable[Metrics]) -> tuple[dict[str, dict[str, list[float]]], dict[str, dict[str, float]]]:
    """Return the means and sums of all roles by label. Several roles may have called one service."""
    means: dict[str, dict[str, list[float]]] = {}
    sums: dict[str, dict[str, float]] = {}
    for part in parts:
        for label, pairs in part.means.items():
            for name, pair in pairs.items():
                at, own = split_name(name, label)
                _add_means(means.setdefault(at, {}), {own: pair})
        for label, amounts in part.sums.items():
            for name, amount in amounts.items():
                at, own = split_name(name, label)
                _add_sums(sums.setdefault(at, {}), {own: amount})
    return means, sums


def _numbers(
    labels: Iterable[str],
    means: Mapping[str, Mapping[str, list[float]]],
    sums: Mapping[str, Mapping[str, float]],
    steps: int,
) -> dict[str, float]:
    """Return the metrics of the calls `labels` of one operator as if they were one call, and sums per step."""
    amounts: dict[str, list[float]] = {}
    totals: dict[str, float] = {}
    for label in labels:
        _add_means(amounts, means.get(label, {}))
        _add_sums(totals, sums.get(label, {}))
    averaged = {name: amount / count for name, (amount, count) in amounts.items() if count}
    return averaged | {name: total / steps for name, total in totals.items()}
