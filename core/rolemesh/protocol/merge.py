"""Metrics of several ranks merged into one: agents merge a node's ranks, the master merges agents. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from rolemesh.graph.logical import LogicalGraph
from rolemesh.observer import RoleTimes, StepMetrics
from rolemesh.protocol.messages import Metrics

__all__ = ["LineAssembler", "MetricsMerger", "add_into"]


def add_into(total: Metrics, part: Metrics) -> None:
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


class MetricsMerger:
    """Joins the lines of the ranks of each role on one node; a line is complete when all of them have sent theirs."""

    def __init__(self) -> None:
        self._ranks: dict[str, set[int]] = {}
        self._open: dict[tuple[str, int], tuple[Metrics, set[int]]] = {}
        self._complete: list[Metrics] = []

    def expect(self, role: str, rank: int) -> None:
        """Lines of `role` need this rank too."""
        self._ranks.setdefault(role, set()).add(rank)

    def add(self, rank: int, lines: Iterable[Metrics]) -> None:
        """Take the lines of one rank; a line that this rank has already sent is dropped."""
        for line in lines:
            expected = self._ranks.get(line.role, {rank})
            if len(expected) == 1:
                self._complete.append(line)
                continue
            key = (line.role, line.step)
            if key not in self._open:
                self._open[key] = (line, {rank})
            else:
                total, seen = self._open[key]
                if rank in seen:
                    continue
                seen.add(rank)
                add_into(total, line)
            total, seen = self._open[key]
            if seen >= expected:
                del self._open[key]
                self._complete.append(msgspec.structs.replace(total, ranks=len(seen)))

    @property
    def pending(self) -> bool:
        """Complete lines wait to be taken."""
        return bool(self._complete)

    def take(self) -> tuple[Metrics, ...]:
        """The complete lines since the last call."""
        lines, self._complete = tuple(self._complete), []
        return lines


class LineAssembler:
    """Builds the lines of ``metrics.jsonl`` from the roles' parts, in step order, each once."""

    def __init__(self, graph: LogicalGraph, world_sizes: Mapping[str, int]) -> None:
        self._world_sizes = dict(world_sizes)
        self._order = tuple(op.label for op in graph.ops)
        self._lags = {f"{self._order[e.src]} → {self._order[e.dst]}": e.lag for e in graph.edges if e.lag}
        self._parts: dict[int, dict[str, Metrics]] = {}
        self._ranks: dict[int, dict[str, int]] = {}

    def add(self, lines: Iterable[Metrics], now: float) -> list[StepMetrics]:
        """Take parts; return the lines that are complete now. `now` is the wall-clock time written into them."""
        for line in lines:
            parts = self._parts.setdefault(line.step, {})
            counts = self._ranks.setdefault(line.step, {})
            if line.role in parts:
                add_into(parts[line.role], line)
            else:
                parts[line.role] = line
            counts[line.role] = counts.get(line.role, 0) + line.ranks
        done: list[StepMetrics] = []
        for step in sorted(self._parts):
            if any(self._ranks[step].get(role, 0) < n for role, n in self._world_sizes.items()):
                break
            done.append(self._line(self._parts.pop(step), now))
            del self._ranks[step]
        return done

    def _line(self, parts: dict[str, Metrics], now: float) -> StepMetrics:
        by_label: dict[str, dict[str, float]] = {}
        records: dict[str, object] = {}
        roles: dict[str, RoleTimes] = {}
        for role, part in parts.items():
            for label, means in part.means.items():
                into = by_label.setdefault(label, {})
                into |= {name: amount / count for name, (amount, count) in means.items() if count}
            for label, sums in part.sums.items():
                by_label.setdefault(label, {}).update(sums)
            n = self._world_sizes[role]
            roles[role] = RoleTimes(*(round(seconds / n, 6) for seconds in part.times))
            records |= part.records
        operators = {label: by_label[label] for label in self._order if label in by_label}
        values: dict[str, float] = {}
        for metrics in operators.values():
            values = metrics | values
        first = next(iter(parts.values()))
        staleness: dict[str, float] = {label: float(lag) for label, lag in self._lags.items()}
        for label, metrics in operators.items():
            if "staleness" in metrics:
                staleness[label] = metrics["staleness"]
        return StepMetrics(first.step, first.steps, now, values, operators, roles, staleness, records)
