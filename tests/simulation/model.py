"""Simulated workloads: hash chains over their inputs, so that a wrong, lost or repeated value shows.

The functions are pure. Ranks of the simulation and `reference`, which runs no protocol at all, use the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Literal, NamedTuple, TypeAlias

from rolemesh.api.partition import Balanced, Broadcast
from rolemesh.api.rank_ref import RankRef
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh.graph.routes import Part, Route, Selection, Send, Share, Whole, route
from rolemesh.graph.schedule import Activity
from rolemesh_durable.protocol.edge import last_call
from rolemesh_runtime.items import cut as cut_items

__all__ = [
    "GROUPS",
    "RESIZABLE",
    "SHARDS",
    "Job",
    "Kind",
    "Mind",
    "Reference",
    "Shape",
    "State",
    "Value",
    "answer_of",
    "answers_of",
    "asked_by",
    "chunks_of",
    "cut",
    "gather",
    "initial_of",
    "made_of",
    "part_of",
    "recut",
    "rows_of",
    "sent_of",
    "value_of",
]

Kind: TypeAlias = Literal["source", "stateless", "stateful", "loader", "collective", "apart"]
"""Ranks of a role that is "apart" are a group, and meet in no step."""

GROUPS = ("collective", "apart")
"""Kinds of roles whose ranks live and die together."""
RESIZABLE = ("stateless", "collective")
"""Kinds of roles whose ranks can become more or fewer."""
ROWS = 5
"""Rows of a value that is shared out by demand."""
SHARDS = 2
"""Shards that one rank of a source hands out per step."""


class Value(NamedTuple):
    """A value on an edge, or a part or chunk of one: a hash, and the data shards that it was made from.

    `version` tells what a role that varies has computed from what it has computed again; 0 otherwise.
    """

    h: int
    shards: tuple[int, ...] = ()
    version: int = 0


class State(NamedTuple):
    """A stateful rank's state: its hash chain, a source's position, and the shards that a trainer has used."""

    h: int = 0
    cursor: int = 0
    seen: tuple[int, ...] = ()


class Shape:
    """A layout of a simulated job: how many ranks its roles have, and who sends what to whom."""

    def __init__(self, graph: LogicalGraph, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self.routes: dict[int, Route] = {
            edge.id: route(
                edge.src_partition, sizes[graph.ops[edge.src].role], edge.dst_partition, sizes[graph.ops[edge.dst].role]
            )
            for edge in graph.edges
        }
        self.keys: tuple[RankRef, ...] = tuple(RankRef(role, n) for role in graph.roles for n in range(sizes[role]))

    def sends(self, edge: Edge, rank: int) -> tuple[Send, ...]:
        """Return the messages of `rank` on `edge`."""
        return self.routes[edge.id].sends(rank)

    def sources(self, edge: Edge, rank: int) -> tuple[int, ...]:
        """The producer ranks of `rank` on `edge`."""
        return tuple(self.routes[edge.id].sources(rank))


class Job:
    """The fixed parts of a simulated job: its graph, its roles, and its first layout."""

    def __init__(self, graph: LogicalGraph, sizes: dict[str, int], kinds: dict[str, Kind], steps: int) -> None:
        self.graph, self.sizes, self.kinds, self.steps = graph, sizes, kinds, steps
        self.activity = Activity(graph)
        self.shape = Shape(graph, sizes)
        self.keys = self.shape.keys
        self.inputs = {op.id: graph.inputs(op.id) for op in graph.ops}
        self.outputs = {op.id: graph.outputs(op.id) for op in graph.ops}
        self.schedule = {role: graph.of_role(role) for role in graph.roles}
        self.stateful = tuple(role for role in graph.roles if kinds[role] != "stateless")
        self.unrepeated = tuple(role for role in self.stateful if kinds[role] != "loader")
        self.varying: frozenset[str] = frozenset()
        """Roles that compute something else each time."""

    def shared(self, edge: Edge) -> bool:
        """Whether the rows that come along it are shared out by demand."""
        return isinstance(edge.dst_partition, Balanced)

    def unlike(self) -> frozenset[str]:
        """Roles whose state is not that of an undisturbed run: those that vary, and who takes values of such."""
        found, ops = set(self.varying), self.graph.ops
        for _ in self.graph.edges:
            found |= {ops[edge.dst].role for edge in self.graph.edges if ops[edge.src].role in found}
        return frozenset(found)

    def shaped(self, resized: dict[str, int]) -> Shape:
        """The layout in which these roles have other sizes."""
        return Shape(self.graph, {**self.sizes, **resized})


def cut(states: list[State], rank: int) -> State:
    """The state of a rank of a resized role, from those of all ranks that it had."""
    seen = tuple(shard for state in states for shard in state.seen) if rank == 0 else ()
    return State(hash((tuple(state.h for state in states), rank)), states[0].cursor, seen)


def recut(edge: Edge, whole: Callable[[int], Value], before: int, rank: int, size: int) -> Value:
    """A value that was under way to `before` consumers, each of which would have got `whole(consumer)`, for one of
    `size`."""
    if before == size:
        return whole(rank)
    held = Broadcast() if isinstance(edge.dst_partition, Balanced) else edge.dst_partition
    anew = route(held, before, held, size)
    parts = []
    for old in anew.sources(rank):
        selection = anew.sends_to(old, rank)
        assert selection is not None
        parts.append([part_of(whole(old), selection)])
    return gather(parts)


def part_of(value: Value, selection: Selection) -> Value:
    """Return the part of a value that `selection` takes."""
    if isinstance(selection, Whole):
        return value
    assert isinstance(selection, Part)
    lo, hi = selection.bounds(len(value.shards))
    first, end = Fraction(selection.start, selection.parts), Fraction(selection.stop, selection.parts)
    return Value(hash((value.h, first.numerator, end.numerator, end.denominator)), value.shards[lo:hi], value.version)


def initial_of(edge: Edge) -> Value:
    """Return the first value of an edge, which its consumers take before any other."""
    return Value(hash((1 << 20, *edge.initial)))


def newest_of(edge: Edge) -> Value:
    """Return the same value for each newest value of an edge, since chance decides which one a step takes."""
    return Value(hash((1 << 21, edge.id)))


def asked_by(op: OpCall, step: int, rank: int) -> list[tuple[str, int]]:
    """The calls of an operator: whom, and for what."""
    return [(role, hash((op.id, step, rank, n))) for role in op.calls for n in range(1 + (op.id + step + rank) % 4)]


def answer_of(h: int) -> int:
    """Return the answer of a service to a request."""
    return hash((1 << 22, h))


def answers_of(op: OpCall, step: int, rank: int) -> list[Value]:
    """Return the answers to an operator's calls, as a further input; [] if it calls nobody."""
    return [Value(hash(tuple(answer_of(h) for _, h in asked_by(op, step, rank))))] if op.calls else []


def chunks_of(value: Value) -> list[Value]:
    """A value as the one to three chunks that it is sent in."""
    count = 1 + value.h % 3
    return [Value(hash((value.h, i)), value.shards if i == 0 else (), value.version) for i in range(count)]


def sent_of(value: Value, selection: Selection) -> list[Value]:
    """A value as it is sent: a part of its rows as a whole, all of it in chunks."""
    return chunks_of(value) if isinstance(selection, Whole) else [part_of(value, selection)]


def gather(parts: list[list[Value]]) -> Value:
    """The consumer's value from the chunks of each of its producers."""
    return Value(
        hash(tuple(chunk.h for part in parts for chunk in part)),
        tuple(shard for part in parts for chunk in part for shard in chunk.shards),
    )


def rows_of(value: Value) -> list[Value]:
    """A value as rows, to be shared out."""
    cuts = [len(value.shards) * at // ROWS for at in range(ROWS + 1)]
    return [Value(hash((value.h, i)), value.shards[cuts[i] : cuts[i + 1]]) for i in range(ROWS)]


def value_of(rows: list[Value]) -> Value:
    """A value of rows, or of some of them."""
    return Value(hash(tuple(row.h for row in rows)), tuple(shard for row in rows for shard in row.shards))


def made_of(mind: Mind, op: OpCall, step: int, row: Value, others: list[Value]) -> Value:
    """Return an operator's result for one shared row. It is the same on each rank."""
    loaded = tuple(sorted(mind.loaded.items()))
    return Value(hash((op.id, step, loaded, row.h, tuple(value.h for value in others))), row.shards)


class Mind:
    """The workload of one rank: what it computes and remembers."""

    def __init__(self, job: Job, key: RankRef) -> None:
        self.job, self.role, self.rank = job, key[0], key[1]
        self.kind = job.kinds[key[0]]
        self.state = State()
        self.loaded: dict[int, int] = {}

    def contribution(self, op: OpCall, inputs: list[Value]) -> int:
        """Return a rank's contribution to its group's collective."""
        return hash((op.id, self.rank, *(v.h for v in inputs)))

    def vary(self, value: Value, nonce: int) -> Value:
        """Return a computed value with the randomness of this attempt."""
        self.state = self.state._replace(h=hash((self.state.h, nonce)))
        return Value(hash((value.h, nonce)), value.shards, nonce)

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
            case "loader" if op.returns is None:
                self.loaded[op.id] = hash((op.id, hashes))  # not of the snapshot
                return Value(0)
            case _:
                mixed = hash((state.h, op.id, step, (*hashes, *sorted(self.loaded.items())), group))
                self.state = State(mixed, state.cursor, state.seen + shards)
                return Value(hash((mixed, self.rank)))


class Reference:
    """Every stateful rank's state after each step of the job without any failure."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._minds = {key: Mind(job, key) for key in job.keys}
        self._made: dict[tuple[int, int, int], Value] = {}
        self._rows: dict[tuple[int, int], list[Value]] = {}
        self._after: list[dict[RankRef, State]] = []
        self._shape = job.shape
        self._before = job.shape, -1
        """The layout before this one, and its last step."""
        self._resized: list[tuple[int, Shape]] = []

    def resize(self, step: int, shape: Shape) -> None:
        """From `step` on the job has another layout: what has been run of later steps was for nothing."""
        if len(self._after) > step + 1 or step in [at for at, _ in self._resized]:
            earlier = self._resized
            self.__init__(self._job)  # type: ignore[misc]
            for at, known in earlier:
                if at < step:
                    self.resize(at, known)
        self._resized.append((step, shape))
        states = self[step] if step >= 0 else {}
        minds = {key: mind for key, mind in self._minds.items() if shape.sizes[key[0]] == self._shape.sizes[key[0]]}
        for key in shape.keys:
            if key not in minds:
                mind = minds[key] = Mind(self._job, key)
                if mind.kind == "collective" and states:
                    mind.state = cut([states[RankRef(key[0], n)] for n in range(self._shape.sizes[key[0]])], key[1])
        new = [minds[key] for key in shape.keys if minds[key] is not self._minds.get(key)]
        self._before, self._shape, self._minds = (self._shape, step), shape, minds
        for mind in new:
            self._repeat(mind, step)
        if states:
            self._after[step] = {key: mind.state for key, mind in minds.items()}

    def _repeat(self, mind: Mind, step: int) -> None:
        """Repeat the last sink calls of such a rank up to `step`."""
        if mind.role in self._job.unrepeated:
            return
        calls = [op for op in self._job.schedule[mind.role] if op.returns is None]
        found = [(last_call(self._job.activity, op.id, step), op) for op in calls]
        for at, op in sorted(((s, op) for s, op in found if s is not None), key=lambda pair: pair[0]):
            inputs = [self._taken(edge, mind.rank, at) for edge in self._job.inputs[op.id]]
            mind.run(op, at, inputs + answers_of(op, at, mind.rank))

    def __getitem__(self, step: int) -> dict[RankRef, State]:
        """Return the state of each rank after `step`."""
        while len(self._after) <= step:
            self._run(len(self._after))
        return self._after[step]

    def _run(self, step: int) -> None:
        job, minds, made = self._job, self._minds, self._made
        for op in job.graph.ops:
            if not job.activity.active(op.id, step):
                continue
            ranks = [minds[RankRef(op.role, n)] for n in range(self._shape.sizes[op.role])]
            inputs = [
                [self._taken(edge, mind.rank, step) for edge in job.inputs[op.id]] + answers_of(op, step, mind.rank)
                for mind in ranks
            ]
            group: tuple[int, ...] = ()
            if job.kinds[op.role] == "collective":
                group = tuple(mind.contribution(op, given) for mind, given in zip(ranks, inputs, strict=True))
            shared = next((i for i, edge in enumerate(job.inputs[op.id]) if job.shared(edge)), None)
            for mind, given in zip(ranks, inputs, strict=True):
                if shared is None:
                    made[op.id, step, mind.rank] = mind.run(op, step, given, group)
                elif mind.rank == 0:
                    others = [value for i, value in enumerate(given) if i != shared]
                    self._rows[op.id, step] = [made_of(mind, op, step, row, others) for row in rows_of(given[shared])]
        self._after.append({key: mind.state for key, mind in minds.items()})

    def _taken(self, edge: Edge, rank: int, step: int) -> Value:
        job, at, (before, last) = self._job, step - edge.lag, self._before
        if edge.newest:
            return newest_of(edge)
        if edge.initial and at < job.activity.first(edge):
            return initial_of(edge)
        role = job.graph.ops[edge.dst].role
        if at > last:
            return self._whole(self._shape, edge, at, rank)
        return recut(
            edge, lambda old: self._whole(before, edge, at, old), before.sizes[role], rank, self._shape.sizes[role]
        )

    def _whole(self, shape: Shape, edge: Edge, at: int, rank: int) -> Value:
        parts = []
        if (rows := self._rows.get((edge.src, at))) is not None:
            share = shape.routes[edge.id].sends_to(0, rank)
            return value_of(cut_items((0, 1, 0, len(rows), rows), share)[4] if isinstance(share, Share) else rows)
        for source in shape.sources(edge, rank):
            selection = shape.routes[edge.id].sends_to(source, rank)
            assert selection is not None
            parts.append(sent_of(self._made[edge.src, at, source], selection))
        return gather(parts)
