"""When calls run: the static schedule of a role, and on which steps a call is active and its values are taken.

A call is active at step t if ``t % every == at`` and every input exists: ``t - lag >= 0`` and its producer was active
at ``t - lag``. Unrolled, that is a conjunction of congruences and lower bounds along the paths into the call, so it is
again one congruence and one lower bound (Chinese remainder theorem): a `Period`, looked up in constant time however
long the job is.
"""

from __future__ import annotations

from collections import deque
from itertools import combinations
from math import gcd, lcm

import msgspec

from rolemesh.graph.logical import Edge, LogicalGraph, OpCall

__all__ = ["Activity", "Period", "flow_order", "role_schedule", "zero_lag_cycle"]


class Period(msgspec.Struct, frozen=True):
    """The steps ``step >= start`` with ``step % every == at``."""

    start: int = 0
    every: int = 1
    at: int = 0

    def __contains__(self, step: int) -> bool:
        return step >= self.start and step % self.every == self.at

    @property
    def first(self) -> int:
        """The first step in it."""
        return self.start + (self.at - self.start) % self.every

    def later(self, lag: int) -> Period:
        """The same steps, `lag` later."""
        return Period(self.start + lag, self.every, (self.at + lag) % self.every)

    def meet(self, other: Period) -> Period | None:
        """The steps in both, or None if there are none."""
        common = gcd(self.every, other.every)
        if (other.at - self.at) % common:
            return None
        ahead = other.every // common
        turns = (other.at - self.at) // common * pow(self.every // common, -1, ahead) % ahead
        every = lcm(self.every, other.every)
        return Period(max(self.start, other.start), every, (self.at + turns * self.every) % every)


class Activity:
    """On which steps each call of a graph is active; equal on producers and consumers, so neither waits in vain.

    `rhythms[op]` is None for a call that never runs: it depends on its own output, or on calls that never meet.
    """

    def __init__(self, graph: LogicalGraph) -> None:
        inputs: dict[int, list[Edge]] = {op.id: [] for op in graph.ops}
        for edge in graph.edges:
            inputs[edge.dst].append(edge)
        self.periods: dict[int, Period | None] = {}
        for op in graph.ops:
            self._resolve(op.id, graph, inputs)
        self._always = frozenset(op for op, period in self.periods.items() if period == Period())

    def _resolve(self, root: int, graph: LogicalGraph, inputs: dict[int, list[Edge]]) -> None:
        """Producers before consumers, depth first without recursion; who meets itself on the way never runs."""
        stack, entered = [root], set[int]()
        while stack:
            op = stack[-1]
            if op in self.periods:
                stack.pop()
                continue
            missing = [edge.src for edge in inputs[op] if edge.src not in self.periods]
            if missing and op not in entered:
                entered.add(op)
                stack.extend(missing)
                continue
            stack.pop()
            call = graph.ops[op]
            period: Period | None = None if missing else Period(0, call.every, call.at)
            for edge in inputs[op]:
                source = self.periods.get(edge.src)
                period = period.meet(source.later(edge.lag)) if period is not None and source is not None else None
            self.periods[op] = period

    def active(self, op: int, step: int) -> bool:
        """Whether call `op` runs at `step`."""
        if op in self._always:
            return True
        period = self.periods[op]
        return period is not None and step in period

    def always(self, op: int) -> bool:
        """Whether call `op` runs at every step."""
        return op in self._always

    def consumed(self, edge: Edge, step: int, steps: int) -> bool:
        """Whether what `edge.src` makes at `step` is taken in a job of `steps` steps; if not, it is not sent.

        True implies that the producer is active at `step`. The consumer takes it at ``step + edge.lag``.
        """
        taken = step + edge.lag
        return step >= 0 and taken < steps and self.active(edge.dst, taken)

    def never(self) -> tuple[int, ...]:
        """The calls that never run, however many steps there are."""
        return tuple(op for op, period in self.periods.items() if period is None)


def role_schedule(graph: LogicalGraph, role: str) -> tuple[OpCall, ...]:
    """What every rank of `role` runs in a step, in this order: the flow's, so ranks that share a slot agree on it."""
    return graph.of_role(role)


def flow_order(graph: LogicalGraph) -> tuple[OpCall, ...]:
    """All calls of a step in an order in which one process could run them: the flow's, except that producers without
    lag come before their consumers. Calls of one role keep the flow's order.

    Raises `ValueError` if there is a cycle without lag (see `zero_lag_cycle`).
    """
    after: dict[int, set[int]] = {op.id: set() for op in graph.ops}
    for edge in graph.edges:
        if edge.lag == 0:
            after[edge.dst].add(edge.src)
    last: dict[str, int] = {}
    for op in graph.ops:
        if op.role in last:
            after[op.id].add(last[op.role])
        last[op.role] = op.id
    order: list[OpCall] = []
    done: set[int] = set()
    while len(order) < len(graph.ops):
        ready = [op for op in graph.ops if op.id not in done and after[op.id] <= done]
        if not ready:
            raise ValueError("the flow has a cycle without lag")
        order.append(ready[0])
        done.add(ready[0].id)
    return tuple(order)


def zero_lag_cycle(graph: LogicalGraph) -> tuple[int, ...] | None:
    """Calls that wait for each other within one step, as the shortest closed path, or None.

    A call waits for the producers of its inputs with lag 0, and for the calls before it on its own role. All of that
    points forward in the flow, except edges from feedback: so every cycle has one of those.
    """
    after = {op.id: [edge.dst for edge in graph.outputs(op.id) if edge.lag == 0] for op in graph.ops}
    for role in graph.roles:
        for first, second in combinations(graph.of_role(role), 2):
            after[first.id].append(second.id)
    paths = [
        path
        for edge in graph.edges
        if edge.lag == 0 and edge.src >= edge.dst and (path := _shortest(after, edge.dst, edge.src))
    ]
    if not paths:
        return None
    shortest = min(paths, key=len)
    return (*shortest, shortest[0])


def _shortest(after: dict[int, list[int]], start: int, end: int) -> tuple[int, ...] | None:
    """Breadth first from `start` to `end`, both included."""
    came: dict[int, int | None] = {start: None}
    queue = deque([start])
    while queue:
        op = queue.popleft()
        if op == end:
            path: list[int] = []
            at: int | None = op
            while at is not None:
                path.append(at)
                at = came[at]
            return tuple(reversed(path))
        for following in after[op]:
            if following not in came:
                came[following] = op
                queue.append(following)
    return None
