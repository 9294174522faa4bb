"""Which call of an operator made the value that another one took. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rolemesh_recorder.lines import FlowEdge, FlowFile, FlowOp

__all__ = ["Run", "arrows"]

SLACK_US = 5000
"""Maximum difference between the clocks of two ranks."""


class Run(NamedTuple):
    """An operator that ran, on `rank`, up to `ended`: span `at` of lane `lane`. Times are µs since 1970."""

    ended: int
    began: int
    rank: int
    lane: int
    at: int


def arrows(flow: FlowFile, runs: Mapping[tuple[int, int], Sequence[Run]]) -> Iterator[tuple[Run, Run]]:
    """Yield pairs of a run and a later one that took its value. `runs` are by operator call and step.

    Of several producers the one that finished last counts, since the consumer waited for it.
    """
    ops = {op.id: op for op in flow.ops}
    ordered = {key: sorted(found) for key, found in runs.items()}
    wanted: dict[int, list[FlowEdge]] = {}
    for edge in flow.edges:
        if edge.src in ops and edge.dst in ops:
            wanted.setdefault(edge.dst, []).append(edge)
    for (op, step), consumers in runs.items():
        for edge in wanted.get(op, ()):
            made = [found for at in _steps(edge, ops[edge.src], step) if (found := ordered.get((edge.src, at)))]
            sizes = (flow.sizes.get(ops[edge.src].role, 1), flow.sizes.get(ops[op].role, 1))
            shares = sizes if edge.partition.count("Split(") == 2 else None
            for consumer in consumers if made else ():
                producer = _last(made, consumer, shares)
                if producer is not None:
                    yield producer, consumer


def _steps(edge: FlowEdge, source: FlowOp, step: int) -> range:
    """Return the steps of which the value may be, the most likely one first."""
    if newest := re.fullmatch(r"AtMost\((\d+)\)", edge.lag):
        return range(step, step - min(int(newest[1]), 1000) - 1, -1)
    first = step - (int(edge.lag) if edge.lag.isdecimal() else 0)
    return range(first, first - min(max(source.every, 1), 1000), -1)


def _last(made: Sequence[Sequence[Run]], consumer: Run, shares: tuple[int, int] | None) -> Run | None:
    for runs in made:
        for run in reversed(runs):
            if run.ended <= consumer.began + SLACK_US and (shares is None or _meet(run.rank, consumer.rank, *shares)):
                return run
    return None


def _meet(producer: int, consumer: int, producers: int, consumers: int) -> bool:
    """True if equal shares of the rows overlap."""
    return producer * consumers < (consumer + 1) * producers and consumer * producers < (producer + 1) * consumers
