"""What simulated workloads compute: hash chains over their inputs, so that a wrong, lost or repeated value shows.

The functions are pure. Ranks of the simulation and `reference`, which runs no protocol at all, use the same ones.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh.graph.routes import Part, Route, Selection, Send, Whole, route
from rolemesh.graph.schedule import Activity

__all__ = ["SHARDS", "Job", "Kind", "Mind", "RankKey", "State", "Value", "chunks_of", "gather", "part_of", "reference"]

RankKey: TypeAlias = tuple[str, int]
Kind: TypeAlias = Literal["source", "stateless", "stateful", "collective"]

SHARDS = 2
"""Shards that one rank of a source hands out per step."""


class Value(NamedTuple):
    """A value on an edge, or a part or chunk of one: a hash, and the data shards that it was made from."""

    h: int
    shards: tuple[int, ...] = ()


class State(NamedTuple):
    """A stateful rank's state: its hash chain, a source's position, and the shards that a trainer has used."""

    h: int = 0
    cursor: int = 0
    seen: tuple[int, ...] = ()


class Job:
    """What is fixed for a simulated job: its graph, its roles, and who sends what to whom."""

    def __init__(self, graph: LogicalGraph, sizes: dict[str, int], kinds: dict[str, Kind], steps: int) -> None:
        self.graph, self.sizes, self.kinds, self.steps = graph, sizes, kinds, steps
        self.activity = Activity(graph)
        self.routes: dict[int, Route] = {
            edge.id: route(
                edge.src_partition, sizes[graph.ops[edge.src].role], edge.dst_partition, sizes[graph.ops[edge.dst].role]
            )
            for edge in graph.edges
        }
        self.inputs = {op.id: graph.inputs(op.id) for op in graph.ops}
        self.outputs = {op.id: graph.outputs(op.id) for op in graph.ops}
        self.schedule = {role: graph.of_role(role) for role in graph.roles}
        self.stateful = tuple(role for role in graph.roles if kinds[role] != "stateless")
        self.keys: tuple[RankKey, ...] = tuple((role, n) for role in graph.roles for n in range(sizes[role]))

    def sends(self, edge: Edge, rank: int) -> tuple[Send, ...]:
        """What `rank` sends on `edge`."""
        return self.routes[edge.id].sends(rank)

    def sources(self, edge: Edge, rank: int) -> tuple[int, ...]:
        """The producer ranks of `rank` on `edge`."""
        return tuple(self.routes[edge.id].sources(rank))


def part_of(value: Value, selection: Selection) -> Value:
    """What `selection` takes of a value."""
    if isinstance(selection, Whole):
        return value
    assert isinstance(selection, Part)
    lo, hi = selection.bounds(len(value.shards))
    return Value(hash((value.h, selection.lo_num, selection.hi_num, selection.hi_den)), value.shards[lo:hi])


def chunks_of(value: Value) -> list[Value]:
    """A value as the one to three chunks that it is sent in."""
    count = 1 + value.h % 3
    return [Value(hash((value.h, i)), value.shards if i == 0 else ()) for i in range(count)]


def gather(parts: list[list[Value]]) -> Value:
    """The consumer's value from the chunks of each of its producers."""
    return Value(
        hash(tuple(chunk.h for part in parts for chunk in part)),
        tuple(shard for part in parts for chunk in part for shard in chunk.shards),
    )


class Mind:
    """The workload of one rank: what it computes and remembers."""

    def __init__(self, job: Job, key: RankKey) -> None:
        self.job, self.role, self.rank = job, key[0], key[1]
        self.kind = job.kinds[key[0]]
        self.state = State()
        self.loaded: dict[int, int] = {}

    def contribution(self, op: OpCall, inputs: list[Value]) -> int:
        """What a rank brings into its group's collective."""
        return hash((op.id, self.rank, *(v.h for v in inputs)))

    def run(self, op: OpCall, step: int, inputs: list[Value], group: tuple[int, ...] = ()) -> Value:
        """One call of an operator; `group` are the contributions of all ranks of a collective role."""
        hashes = tuple(v.h for v in inputs)
        shards = tuple(shard for v in inputs for shard in v.shards)
        state = self.state
        match self.kind:
            case "source":
                first = (state.cursor * self.job.sizes[self.role] + self.rank) * SHARDS
                made = tuple(range(first, first + SHARDS))
                self.state = State(hash((state.h, op.id, step, hashes)), state.cursor + 1)
                return Value(hash((state.h, op.id, made)), made)
            case "stateless":
                if op.returns is None:
                    self.loaded[op.id] = hash((op.id, hashes))
                    return Value(0)
                loaded = tuple(sorted(self.loaded.items()))
                return Value(hash((op.id, self.rank, step, loaded, hashes)), shards)
            case _:
                mixed = hash((state.h, op.id, step, hashes, group))
                self.state = State(mixed, state.cursor, state.seen + shards)
                return Value(hash((mixed, self.rank)))


def reference(job: Job) -> tuple[dict[RankKey, State], dict[int, dict[RankKey, State]]]:
    """Every stateful rank's state after the last step, and after each step, of the job without any failure."""
    minds = {key: Mind(job, key) for key in job.keys}
    made: dict[tuple[int, int, int], Value] = {}
    after: dict[int, dict[RankKey, State]] = {}
    for step in range(job.steps):
        for op in job.graph.ops:
            if not job.activity.active(op.id, step):
                continue
            ranks = [minds[op.role, n] for n in range(job.sizes[op.role])]
            inputs = [[_taken(job, made, edge, mind.rank, step) for edge in job.inputs[op.id]] for mind in ranks]
            group: tuple[int, ...] = ()
            if job.kinds[op.role] == "collective":
                group = tuple(mind.contribution(op, given) for mind, given in zip(ranks, inputs, strict=True))
            for mind, given in zip(ranks, inputs, strict=True):
                made[op.id, step, mind.rank] = mind.run(op, step, given, group)
        after[step] = {key: minds[key].state for key in job.keys}
    return {key: mind.state for key, mind in minds.items()}, after


def _taken(job: Job, made: dict[tuple[int, int, int], Value], edge: Edge, rank: int, step: int) -> Value:
    parts = []
    for source in job.sources(edge, rank):
        selection = job.routes[edge.id].sends_to(source, rank)
        assert selection is not None
        parts.append(chunks_of(part_of(made[edge.src, step - edge.lag, source], selection)))
    return gather(parts)
