"""The static schedule of a role: the order of its calls, the steps at which a call is active, and
the steps at which its values are taken.

A call is active at step t if ``t % every == at`` and every input exists: ``t - lag >= 0``, and its
producer was active at ``t - lag``. Unrolled along the paths into the call, that is a conjunction of
congruences and lower bounds, so it is again one congruence and one lower bound (Chinese remainder
theorem). This `Period` is looked up in constant time, however long the job is. An input with an
initial value exists from the start; one check confirms that it matches the call's steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from itertools import combinations
from math import gcd, lcm

import msgspec

from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh.graph.routes import by_demand


class Period(msgspec.Struct, frozen=True):
    """The steps ``step >= start`` with ``step % every == at``."""

    start: int = 0
    every: int = 1
    at: int = 0

    def __contains__(self, step: int) -> bool:
        return step >= self.start and step % self.every == self.at

    @property
    def first(self) -> int:
        """The first step of the period."""
        return self.next(self.start)

    def next(self, step: int) -> int:
        """Return the first step of the period that is not before `step`."""
        step = max(step, self.start)
        return step + (self.at - step) % self.every

    def later(self, lag: int) -> Period:
        """Return the same steps, shifted by `lag`."""
        return Period(self.start + lag, self.every, (self.at + lag) % self.every)

    def meet(self, other: Period) -> Period | None:
        """Return the steps that are in both, or None if there are none."""
        common = gcd(self.every, other.every)
        if (other.at - self.at) % common:
            return None
        ahead = other.every // common
        turns = (other.at - self.at) // common * pow(self.every // common, -1, ahead) % ahead
        every = lcm(self.every, other.every)
        return Period(max(self.start, other.start), every, (self.at + turns * self.every) % every)


def takes_first(edge: Edge) -> bool:
    """Whether a step takes the items that were finished first, of rows by demand."""
    return edge.newest and by_demand(edge.src_partition) is not None


def delay(edge: Edge) -> int:
    """A call waits for a value, or for as many items, of this many steps before."""
    return 0 if takes_first(edge) else edge.lag


class Activity:
    """The steps at which each call of a graph is active. Producers and consumers compute the same,
    so neither waits in vain.

    `periods[op]` is None for a call that never runs, because it depends on its own output or on
    calls that never meet.
    """

    def __init__(self, graph: LogicalGraph) -> None:
        inputs: dict[int, list[Edge]] = {op.id: [] for op in graph.ops}
        for edge in graph.edges:
            if not edge.initial:
                inputs[edge.dst].append(edge)
        self.periods: dict[int, Period | None] = dict.fromkeys(inputs)
        order = TopologicalSorter(
            {op: [edge.src for edge in edges] for op, edges in inputs.items()}
        )
        with suppress(CycleError):  # then what is in the cycle, or behind it, is never ready
            order.prepare()
        while ready := order.get_ready():
            self.periods |= {op: self._period(graph.ops[op], inputs[op]) for op in ready}
            order.done(*ready)
        self._always = frozenset(op for op, period in self.periods.items() if period == Period())

    def _period(self, call: OpCall, inputs: Sequence[Edge]) -> Period | None:
        """Return the period of a call whose producers' periods are known."""
        period: Period | None = Period(0, call.every, call.at)
        for edge in inputs:
            source = self.periods[edge.src]
            if source is not None and edge.newest:
                # Every later step finds a value, whichever step it was made at.
                source = Period(source.first)
            period = (
                period.meet(source.later(delay(edge)))
                if period is not None and source is not None
                else None
            )
        return period

    def first(self, edge: Edge) -> int:
        """Return the first step at which `edge.src` makes a value. Before it, consumers take the
        edge's initial value."""
        period = self.periods[edge.src]
        return period.first if period is not None else 0

    def apart(self, edge: Edge) -> bool:
        """Return whether `edge.dst` runs at steps for which `edge.src` makes nothing although it
        has begun."""
        made = self.periods[edge.src]
        taken = self.periods[edge.dst]
        if made is None or taken is None:
            return taken is not None
        if edge.newest:
            return edge.lag + 1 < made.every
        return taken.every % made.every != 0 or (taken.at - edge.lag - made.at) % made.every != 0

    def active(self, op: int, step: int) -> bool:
        """Return whether call `op` runs at `step`."""
        if op in self._always:
            return True
        period = self.periods[op]
        return period is not None and step in period

    def always(self, op: int) -> bool:
        """Return whether call `op` runs at every step."""
        return op in self._always

    def consumed(self, edge: Edge, step: int, steps: int) -> bool:
        """Return whether a consumer takes the value that `edge.src` makes at `step`, in a job of
        `steps` steps. If not, it is not sent.

        Only for steps at which the producer is active; at others the result is False, except for
        `newest` edges. The consumer takes the value at ``step + edge.lag``; on a `newest` edge
        possibly at any step until then.
        """
        taken = step + edge.lag
        begun = step >= (self.first(edge) if edge.initial else 0)
        if edge.newest:
            period = self.periods[edge.dst]
            at = period.next(step) if period is not None else steps
            return begun and at <= taken and at < steps
        return begun and taken < steps and self.active(edge.dst, taken)

    def never(self) -> tuple[int, ...]:
        """Return the calls that never run, however many steps there are."""
        return tuple(op for op, period in self.periods.items() if period is None)


def flow_order(graph: LogicalGraph) -> tuple[OpCall, ...]:
    """Return all calls of a step in an order in which one process could run them.

    It is the order of the flow, except that producers without lag come before their consumers.
    Calls of one role keep the flow's order. Raises `ValueError` if there is a cycle without lag
    (see `zero_lag_cycle`).
    """
    after: dict[int, set[int]] = {op.id: set() for op in graph.ops}
    for edge in graph.edges:
        if delay(edge) == 0:
            after[edge.dst].add(edge.src)
    last: dict[str, int] = {}
    for call in graph.ops:
        if call.role in last:
            after[call.id].add(last[call.role])
        last[call.role] = call.id
    sorter = TopologicalSorter(after)
    sorter.prepare()
    order: list[OpCall] = []
    ready: list[int] = []
    while sorter.is_active():
        for op in sorter.get_ready():
            heappush(ready, op)
        order.append(graph.ops[heappop(ready)])
        sorter.done(order[-1].id)
    return tuple(order)


def zero_lag_cycle(graph: LogicalGraph) -> tuple[int, ...] | None:
    """Return calls that wait for each other within one step, as the shortest closed path, or None.

    A call waits for the producers of its inputs with lag 0, and for the earlier calls of its own
    role. All of these come earlier in the flow, except producers of feedback. So every cycle
    contains a feedback edge.
    """
    after = {
        op.id: [edge.dst for edge in graph.outputs(op.id) if delay(edge) == 0] for op in graph.ops
    }
    for role in graph.roles:
        for first, second in combinations(graph.of_role(role), 2):
            after[first.id].append(second.id)
    starts = dict.fromkeys(
        edge.dst for edge in graph.edges if delay(edge) == 0 and edge.src >= edge.dst
    )
    return min(
        filter(None, (shortest_cycle(after, start) for start in starts)), key=len, default=None
    )


def shortest_cycle(after: Mapping[int, Iterable[int]], start: int) -> tuple[int, ...] | None:
    """Return the shortest path from `start` to itself, found breadth first; both ends are `start`.
    None if there is none."""
    queue: deque[tuple[int, ...]] = deque([(start,)])
    seen: set[int] = set()
    while queue:
        path = queue.popleft()
        for following in after[path[-1]]:
            if following == start:
                return (*path, start)
            if following not in seen:
                seen.add(following)
                queue.append((*path, following))
    return None
