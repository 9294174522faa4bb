"""Any traced graph ends: ranks that follow their schedules under credits, in a network that delivers as it likes.

Each rank is a generator that runs its role's calls in order. It blocks where a real one would: on an input that has
not come, and on an edge whose window is full. The simulation picks at random who moves and which message arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolemesh.api.partition import Broadcast, Split
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh.graph.routes import Route, route
from rolemesh.graph.schedule import Activity, zero_lag_cycle
from rolemesh_runtime.values import combine, select

ROWS = 12
"""Rows that each call makes in a step over all of its ranks: divisible by all world sizes used here."""

Rank = tuple[str, int]


class Network:
    """FIFO between two ranks, in any order between different pairs; values one way, credits the other."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.wires: dict[tuple[Rank, Rank], deque[tuple[Any, ...]]] = {}
        self.inbox: dict[tuple[Rank, int, int, int], Any] = {}
        self.unreturned: dict[tuple[int, Rank, Rank], int] = {}

    def send(self, source: Rank, target: Rank, *message: Any) -> None:
        self.wires.setdefault((source, target), deque()).append(message)

    def deliver_one(self) -> bool:
        busy = [pair for pair, wire in self.wires.items() if wire]
        if not busy:
            return False
        source, target = self.random.choice(sorted(busy))
        kind, edge, step, value = self.wires[source, target].popleft()
        if kind == "credit":
            self.unreturned[edge, target, source] -= 1
        else:
            key = (target, edge, step, source[1])
            assert key not in self.inbox, "a value arrived twice"
            self.inbox[key] = value
        return True


class Simulation:
    def __init__(self, graph: LogicalGraph, sizes: dict[str, int], steps: int, seed: int) -> None:
        self.graph, self.sizes, self.steps = graph, sizes, steps
        self.activity = Activity(graph)
        self.routes: dict[int, Route] = {}
        for edge in graph.edges:
            m, n = sizes[graph.ops[edge.src].role], sizes[graph.ops[edge.dst].role]
            self.routes[edge.id] = route(edge.src_partition, m, edge.dst_partition, n)
        self.random = Random(seed)
        self.network = Network(self.random)
        self.taken: dict[tuple[int, int, int], Any] = {}

    def run(self) -> None:
        """Until all ranks have ended; fails if nothing can move."""
        ranks = {(role, rank): self.rank(role, rank) for role in self.graph.roles for rank in range(self.sizes[role])}
        waiting: dict[Rank, str] = {}
        while ranks:
            movable = sorted(ranks.keys() - waiting.keys())
            if self.random.random() < 0.5 or not movable:
                if self.network.deliver_one():
                    waiting.clear()
                    continue
                assert movable, f"deadlock: {waiting}"
            who = self.random.choice(movable)
            try:
                reason = next(ranks[who])
            except StopIteration:
                del ranks[who]
            else:
                if reason is not None:
                    waiting[who] = reason
        while self.network.deliver_one():
            pass
        assert not self.network.inbox, "values were sent that nobody took"
        assert not any(self.network.unreturned.values()), "credits were lost"

    def rank(self, role: str, rank: int) -> Iterator[str | None]:
        """Yields why it cannot go on, or None after an action."""
        me = (role, rank)
        for step in range(self.steps):
            for call in self.graph.of_role(role):
                if not self.activity.active(call.id, step):
                    continue
                for edge in self.graph.inputs(call.id):
                    yield from self.take(me, edge, step)
                yield None
                rows = ROWS // self.sizes[role]
                whole = range(ROWS) if call.returns == Broadcast() else range(rank * rows, (rank + 1) * rows)
                value = [(call.id, step, row) for row in whole]
                for edge in self.graph.outputs(call.id):
                    if self.activity.consumed(edge, step, self.steps):
                        yield from self.give(me, edge, step, value)

    def take(self, me: Rank, edge: Edge, step: int) -> Iterator[str | None]:
        produced = step - edge.lag
        role = self.graph.ops[edge.src].role
        sources = self.routes[edge.id].sources(me[1])
        while missing := [s for s in sources if (me, edge.id, produced, s) not in self.network.inbox]:
            yield f"waits on edge {edge.id} for step {produced} of ranks {missing}"
        parts = [self.network.inbox.pop((me, edge.id, produced, source)) for source in sources]
        self.taken[edge.id, step, me[1]] = combine(parts, self.routes[edge.id].combine)
        for source in sources:
            self.network.send(me, (role, source), "credit", edge.id, produced, None)

    def give(self, me: Rank, edge: Edge, step: int, value: list[Any]) -> Iterator[str | None]:
        role = self.graph.ops[edge.dst].role
        for send in self.routes[edge.id].sends(me[1]):
            for consumer in send.consumers:
                pair = (edge.id, me, (role, consumer))
                while self.network.unreturned.get(pair, 0) >= edge.window:
                    yield f"is blocked on edge {edge.id} towards {role}/{consumer}"
                self.network.unreturned[pair] = self.network.unreturned.get(pair, 0) + 1
                self.network.send(me, (role, consumer), "value", edge.id, step, select(value, send.selection))

    def check(self) -> None:
        """Each consumer got, on each step it ran, exactly the rows of step - lag, in order."""
        expected = set()
        for edge in self.graph.edges:
            n = self.sizes[self.graph.ops[edge.dst].role]
            for step in range(self.steps):
                if not self.activity.active(edge.dst, step):
                    continue
                rows = [(edge.src, step - edge.lag, row) for row in range(ROWS)]
                got = [self.taken[edge.id, step, rank] for rank in range(n)]
                expected |= {(edge.id, step, rank) for rank in range(n)}
                if edge.dst_partition == Broadcast():
                    assert got == [rows] * n
                else:
                    assert [row for part in got for row in part] == rows
        assert expected == self.taken.keys()


@st.composite
def networks(draw: st.DrawFn) -> tuple[LogicalGraph, dict[str, int]]:
    """Graphs that the tracer would let through: no cycle within a step. Feedback edges carry a lag where they must."""
    sizes = {role: draw(st.sampled_from([1, 2, 3, 4])) for role in "abc"}
    partition = st.sampled_from([Split(), Broadcast()])
    count = draw(st.integers(2, 7))
    ops = []
    for i in range(count):
        every = draw(st.sampled_from([1, 1, 1, 2, 3]))
        at = draw(st.integers(0, every - 1))
        role = draw(st.sampled_from("abc"))
        ops.append(OpCall(i, role, f"op{i}", f"{role}.op{i}", draw(partition), every=every, at=at))
    edges: list[Edge] = []
    for _ in range(draw(st.integers(1, 8))):
        src, dst = draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))
        returns = ops[src].returns
        assert returns is not None
        edge = Edge(
            len(edges),
            src,
            dst,
            f"p{len(edges)}",
            returns,
            draw(partition),
            lag=draw(st.integers(0, 3)),
            credits=draw(st.integers(1, 3)),
        )
        if zero_lag_cycle(LogicalGraph("g", tuple(ops), (*edges, edge))) is None:
            edges.append(edge)
    return LogicalGraph("g", tuple(ops), tuple(edges)), sizes


@given(networks(), st.integers(1, 8), st.integers(0, 2**32))
@settings(max_examples=400, deadline=None)
def test_no_graph_deadlocks_and_every_consumer_gets_the_value_of_its_lag(
    network: tuple[LogicalGraph, dict[str, int]], steps: int, seed: int
) -> None:
    simulation = Simulation(*network, steps, seed)
    simulation.run()
    simulation.check()


def test_the_simulation_sees_a_deadlock_where_there_is_one() -> None:
    one = OpCall(0, "a", "one", "a.one", Split())
    two = OpCall(1, "b", "two", "b.two", Split())
    there = Edge(0, 0, 1, "x", Split(), Split())
    back = Edge(1, 1, 0, "y", Split(), Split())
    simulation = Simulation(LogicalGraph("g", (one, two), (there, back)), {"a": 1, "b": 1}, 1, 0)
    simulation.activity.active = lambda op, step: True  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="deadlock"):
        simulation.run()


def test_a_lagged_loop_overlaps_steps_and_still_gets_each_value_once() -> None:
    calls = (
        OpCall(0, "data", "next", "data.next", Split()),
        OpCall(1, "rollout", "generate", "rollout.generate", Split()),
        OpCall(2, "trainer", "train", "trainer.train", Split()),
        OpCall(3, "trainer", "weights", "trainer.weights", Broadcast()),
        OpCall(4, "rollout", "load", "rollout.load", Split()),
    )
    edges = (
        Edge(0, 0, 1, "prompts", Split(), Split(), credits=1),
        Edge(1, 1, 2, "samples", Split(), Split(), credits=1),
        Edge(2, 3, 4, "weights", Broadcast(), Broadcast(), lag=1, credits=1),
    )
    graph = LogicalGraph("grpo", calls, edges)
    for seed in range(20):
        simulation = Simulation(graph, {"data": 1, "rollout": 2, "trainer": 3}, 6, seed)
        simulation.run()
        simulation.check()
