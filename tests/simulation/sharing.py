"""Rows that are shared out by demand, in a simulated rank: its words to its mates, and its calls, item by item."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.simulation.memory import Entry
from tests.simulation.model import Shape, Value, made_of, rows_of, value_of

from rolemesh.api.partition import Balanced
from rolemesh.graph import items
from rolemesh.graph.logical import Edge, OpCall
from rolemesh.graph.routes import Part, Share
from rolemesh_durable.protocol.first import FirstChoice, share_of
from rolemesh_durable.protocol.item_reports import reports_record
from rolemesh_durable.protocol.sharing import Sharing

if TYPE_CHECKING:
    from tests.simulation.rank import SimRank

__all__ = ["First", "Mates", "assembled", "shared_call"]

ASKS, TAKES, TOLD = "asks", "takes", "told"


class Mates:
    """The other ranks that take items of an edge; see `rolemesh_durable.rank.mates.Mates`."""

    def __init__(self, rank: SimRank, edge: Edge) -> None:
        size = rank.shape.sizes[rank.key[0]]
        self.rank, self.edge = rank, edge
        self.sharing = Sharing(rank.key[1], size, rank.launch.resume)
        self.mates = [mate for mate in range(size) if mate != rank.key[1]]
        self.asked = dict.fromkeys(self.mates, -1)
        self.pending: dict[int, tuple[int, int]] = {}
        known = rank.agent.memory.items.get(rank.key, {})
        self.made = {at: took for (op, at), took in known.items() if op == edge.dst and at > rank.launch.resume}
        """Of a role that varies: how many items, and which, of steps whose results are in the log."""
        self.reported: dict[int, tuple[int, list[int]]] = {}
        for at, (_, took) in self.made.items():
            self.sharing.remember(at, took)

    def rewire(self) -> None:
        """Addresses have changed."""
        for mate in self.mates:
            generation = self.rank.generation_of(self.rank.key[0], mate)
            self.sharing.restarted(mate, generation)
            if mate in self.sharing.silent and generation > self.asked[mate]:
                self.asked[mate] = generation
                self.say(mate, ASKS, self.sharing.first)
        pending, self.pending = self.pending, {}
        for mate, (generation, step) in pending.items():
            self.message(ASKS, mate, generation, step, 0)

    def message(self, kind: str, mate: int, generation: int, step: int, item: int) -> None:
        """A mate has said something."""
        if kind == TAKES:
            self.sharing.heard(mate, generation, step, item)
        elif kind == TOLD:
            for at, taken in self.sharing.told(mate, generation):
                self.say(mate, TAKES, at, taken)
        elif generation > self.rank.generation_of(self.rank.key[0], mate):
            self.pending[mate] = generation, step
        else:
            for at, taken in self.sharing.asked(mate, generation, step):
                self.say(mate, TAKES, at, taken)
            self.say(mate, TOLD, step)

    def reports(self, op: OpCall, step: int, count: int, made: list[int]) -> None:
        """The rank has made these items, of so many: each is counted once."""
        self.reported[step] = count, made
        reports = {item: ({"of": [float(count), 1.0]}, {"items": 1.0}) for item in made}
        self.rank.records |= reports_record(op.label, step, self.rank.key[1], count, reports)

    def say(self, mate: int, kind: str, step: int, item: int = 0) -> None:
        """Tell a mate."""
        rank = self.rank
        rank.send_to((rank.key[0], mate), ("share", self.edge.id, kind, rank.key[1], rank.generation, step, item))


class First:
    """What a consumer takes that takes what is finished first; see `rolemesh_durable.rank.first_port.FirstPort`."""

    def __init__(self, rank: SimRank, edge: Edge, resume: int) -> None:
        memory = rank.agent.memory
        self.rank, self.edge = rank, edge
        log = memory.logs.get(rank.key, ())
        known = [e.item for e in log if e.edge == edge.id and e.step == resume and not e.consumers]
        if resume >= 0 and not known:
            rank.world.fail("no row comes twice", f"{rank.name} does not know what it has taken by {resume}: {edge}")
        again = {step: took for (of, step), took in rank.chosen().items() if of == edge.id and step > resume}
        self.choice = FirstChoice(edge.lag, taken=known[0] if known else None, again=again)

    def came(self, step: int, item: Any) -> None:
        """An item has come."""
        number, items_, _, total, _ = item
        how, rank = self.edge.src_partition, self.rank
        assert isinstance(how, Balanced)
        ranks = rank.shape.sizes[rank.key[0]]
        wanted = share_of(rank.key[1], ranks, size=how.rows, items=items_, total=total)
        self.choice.came(step, number, wanted)

    def call(self, step: int) -> None:
        """Choose what `step` takes, and log it."""
        rank, choice, edge = self.rank, self.choice, self.edge
        if not choice.choose(step):
            rank.waits(edge.id)
            rank.until(lambda: choice.choose(step))
        rank.world.checks.took(rank, edge, step, choice.took)
        rank.agent.memory.choices.setdefault(rank.key, {})[edge.id, step] = choice.took
        rank.agent.memory.logs[rank.key].append(Entry(edge.id, step, 0, True, (), choice.taken, 1))
        rank.ins[edge.id].state.forget(choice.released + 1)


def assembled(
    rank: SimRank, edge: Edge, made: int, chunks: Sequence[Sequence[Any]], shape: Shape, index: int
) -> Value | None:
    """The value that consumer rank `index` of a layout gets from the items that have come, or None if some have not."""
    rows = items.assembled(item for part in chunks for item in part)
    if rows is None:
        return None
    count = shape.sizes[rank.key[0]]
    share = shape.routes[edge.id].sends_to(0, index)
    total = next(item[3] for part in chunks for item in part)
    low, high = Part(0, index, index + 1, count).bounds(total)
    wanted = high - low if isinstance(share, Share) else total
    rank.world.checks.collated(rank, edge, made, rows, wanted)
    return value_of(rows)


class Varying:
    """What a rank makes of its items of a step, where that is something else each time: seen when the log has all
    of it."""

    def __init__(self, rank: SimRank, op: OpCall, step: int) -> None:
        self._rank, self._op, self._step = rank, op, step
        self._staged: list[tuple[Any, ...]] = []

    def put(self, *chunk: Any) -> None:
        """A chunk, as `SimRank.emit` takes it."""
        self._staged.append(chunk)

    def end(self) -> None:
        """That was all."""
        rank, op, step = self._rank, self._op, self._step
        rank.log_whole(step, self._staged)
        rank.agent.memory.items.setdefault(rank.key, {})[op.id, step] = rank.mates[op.id].reported[step]
        rank.show_whole(self._staged)


def shared_call(rank: SimRank, op: OpCall, step: int, given: dict[str, Value]) -> None:
    """One call of an operator whose rows are shared out: this rank's items, and then the word that this was all."""
    world, mates, number = rank.world, rank.mates[op.id], 0
    how = mates.edge.dst_partition
    assert isinstance(how, Balanced)
    if not mates.sharing.informed:
        rank.waits(mates.edge.id)
        rank.until(lambda: mates.sharing.informed)
    ways = rank.credits(op, step)
    if step in mates.made:
        mates.reports(op, step, *mates.made[step])
        return
    if op.role in rank.job.varying:
        rank.all_have_said()
    rows = rows_of(given[mates.edge.param])
    others = [value for param, value in given.items() if param != mates.edge.param]
    total, count = items.apart(rows, how.rows)
    varies = op.role in rank.job.varying
    varying = Varying(rank, op, step)
    put = varying.put if varies else rank.emit
    while True:
        rank.hear()
        if (item := mates.sharing.take(step, count)) is None:
            break
        world.checks.works(rank, op, step, item)
        for mate in mates.sharing.listeners:
            mates.say(mate, TAKES, step, item)
        rank.computes(op, step, 1 if world.chance(0.8) else 4)
        made = [made_of(rank.mind, op, step, row, others) for row in rows[item * how.rows : (item + 1) * how.rows]]
        if varies:
            nonce = world.nonce()
            made = [Value(hash((row.h, nonce)), row.shards, nonce) for row in made]
        whole = item, count, item * how.rows, total, made
        for way in ways:
            for send in way.sends:
                part = items.cut(whole, send.selection) if isinstance(send.selection, Share) else whole
                put(way, step, number, False, send.consumers, part)
        number += 1
    mates.reports(op, step, count, mates.sharing.own(step))
    for way in ways:
        for send in way.sends:
            put(way, step, number, True, send.consumers, None)
    if varies:
        varying.end()
