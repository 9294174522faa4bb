"""The producer's end of a call whose second result may differ: all consumers get one version of each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from rolemesh_durable.protocol.rank.agreement import NOTHING
from rolemesh_durable.protocol.rank.effects import Effects, Item, Log
from rolemesh_durable.protocol.rank.group_barrier import GroupBarrier
from rolemesh_durable.protocol.rank.out_edge import OutEdge
from rolemesh_durable.protocol.rank.out_port import OutPort, Room
from rolemesh_durable.protocol.rank.page import BLOCKED
from rolemesh_durable.protocol.rank.records import FormerRecord
from rolemesh_durable.protocol.rank.shape import JobShape

__all__ = ["Annex", "GroupPort", "VersionPort"]

LOST = (1 << 32) - 2
"""Stands for the generation of chunks that the log has lost: they do not count."""


T = TypeVar("T", bound=Item)


class _Chunk(NamedTuple):
    """The arguments of `OutEdge.put`."""

    item: Any
    step: int
    chunk: int
    last: bool
    consumers: tuple[int, ...]


_Staged: TypeAlias = tuple[OutEdge[T], _Chunk]


class Annex(Protocol):
    """An extension that adds to the log's record of a complete value, and reads it in later lives of the rank."""

    def taken(self, step: int) -> bytes:
        """Return the addition to the record of `step`."""

    def remember(self, step: int, items: bytes) -> None:
        """A former generation completed the value of `step`, and added `items` to its record."""


class VersionPort(OutPort[T]):
    """An out-port that sends a value only once the log has all of it. It never replaces a value in the log."""

    def __init__(
        self,
        job: JobShape,
        effects: Effects[T],
        room: Room,
        call: int,
        out_edges: Sequence[OutEdge[T]],
        annexes: Mapping[int, Annex],
    ) -> None:
        """`out_edges` are all edges out of the rank. `annexes` are the additions to records, by operator call."""
        super().__init__(job, effects, room)
        self._call, self._all, self._annexes, self._site = call, out_edges, annexes, effects.mail.site
        self._staged: list[_Staged[T]] = []
        self.made: set[int] = set()
        """Steps whose value, of a former generation, is in the log and is sent from there."""

    def whole(self, record: FormerRecord) -> None:
        """Note a complete value of a former generation, which the log has."""
        self.made.add(record.step)
        if self._call in self._annexes:
            self._annexes[self._call].remember(record.step, record.body)

    def _wrote_again(self, log: Log[T], step: int, first: int) -> None:
        self._say_whole(log, step, first)

    def _begin(self, step: int) -> bool:
        if step in self.made:
            return False
        self._hear()
        return super()._begin(step)

    def _put(
        self, out_edge: OutEdge[T], item: T | None, step: int, chunk: int, last: bool, consumers: tuple[int, ...]
    ) -> None:
        self._staged.append((out_edge, _Chunk(item, step, chunk, last, consumers)))

    def _finish(self, step: int) -> None:
        if self._staged:
            staged, self._staged = self._staged, []
            self._write(step, staged)
            _show(staged)

    def _write(self, step: int, staged: list[_Staged[T]]) -> None:
        log = self._log
        assert log is not None
        first = log.position
        for out_edge, chunk in staged:
            out_edge.write(log, *chunk)
        self._say_whole(log, step, first)

    def _say_whole(self, log: Log[T], step: int, first: int) -> None:
        items = self._annexes[self._call].taken(step) if self._call in self._annexes else b""
        log.whole(self._call, step, first, max(out_edge.state.hold for out_edge in self._out_edges), items)

    def _hear(self) -> None:
        """If the log may be incomplete, wait until every consumer has asked: its ask says what it used.

        Raises `LogLost`.
        """
        unsure = [out_edge for out_edge in self._all if out_edge.made is not None]
        for out_edge in unsure:
            state = out_edge.state
            self._until(lambda: not state.unheard, BLOCKED, out_edge.edge.id)  # noqa: B023 (asked before the next round)
        for out_edge in unsure:
            out_edge.made = None


class GroupPort(VersionPort[T]):
    """The out-port of a group's value. A rank sends its part once all ranks have theirs in their logs.

    See `protocol.rank.agreement`.
    """

    def __init__(
        self,
        job: JobShape,
        effects: Effects[T],
        room: Room,
        call: int,
        out_edges: Sequence[OutEdge[T]],
        annexes: Mapping[int, Annex],
        barrier: GroupBarrier,
    ) -> None:
        super().__init__(job, effects, room, call, out_edges, annexes)
        self._barrier, self._calls = barrier, len(job.graph.ops)
        self._former: dict[int, tuple[int, list[_Staged[T]]]] = {}
        """The chunks in the log, by step, each with the generation that made them."""

    def whole(self, record: FormerRecord) -> None:
        """Do nothing: the group agrees on the value when this generation has made it, too."""

    def take_over(self, out_edge: OutEdge[T], item: T | None, record: FormerRecord, *, again: bool) -> None:
        """As for any port, but hold back the chunks that may not count."""
        if not again:
            super().take_over(out_edge, item, record, again=again)
            return
        chunk = _Chunk(item, record.step, record.chunk, record.last, record.consumers)
        self._former.setdefault(record.step, (record.generation, []))[1].append((out_edge, chunk))

    def write_again(self, log: Log[T]) -> None:
        """As for any port, but the chunks that were held back are lost."""
        super().write_again(log)
        self._former = {at: (LOST, chunks) for at, (_, chunks) in self._former.items()}

    def _finish(self, step: int) -> None:
        staged, self._staged = self._staged, []
        present = self._site.generation
        made, former = self._former.pop(step, (present, []))
        if staged and not former:
            self._write(step, staged)
        vote = made + 1 if former or staged else NOTHING
        while not self._agree(step, vote):
            for out_edge in self._out_edges:
                out_edge.void(step)
            self._hear()
            if staged:
                self._write(step, staged)
            _forget(former)
            former, vote = [], present + 1 if staged else NOTHING
        _show(former or staged)
        if former:
            _forget(staged)

    def _agree(self, step: int, vote: int) -> bool:
        barrier = self._barrier
        barrier.vote(step * self._calls + self._call, vote)
        self._until(lambda: barrier.verdict is not None, BLOCKED)
        return bool(barrier.verdict)


def _show(chunks: list[_Staged[T]]) -> None:
    for out_edge, chunk in chunks:
        out_edge.show(*chunk)


def _forget(chunks: list[_Staged[T]]) -> None:
    """Release chunks that are not sent."""
    for item in {id(chunk.item): chunk.item for _, chunk in chunks}.values():
        if item is not None:
            item.free()
