"""The producer's end of the edges of a call that may come to something else the second time: one value, one version."""

from __future__ import annotations

from typing import NamedTuple

from rolemesh_durable.checkpoint.send_log import LogRecord, SendLog
from rolemesh_durable.dataplane.transport import Payload
from rolemesh_durable.protocol.agreement import NOTHING
from rolemesh_durable.rank.barrier import GroupBarrier
from rolemesh_durable.rank.mates import Mates
from rolemesh_durable.rank.out_port import OutEdge, OutPort, Rank

__all__ = ["GroupPort", "VersionPort"]

LOST = (1 << 32) - 2
"""In the place of the generation of what is in the log no more: it does not count."""


class _Chunk(NamedTuple):
    """What `OutEdge.put` takes, after where."""

    payload: Payload | None
    step: int
    chunk: int
    last: bool
    consumers: tuple[int, ...]


class VersionPort(OutPort):
    """Nobody sees any of a call's value before the log has all of it, and what the log has is not made again."""

    def __init__(self, ports: Rank, call: int) -> None:
        super().__init__(ports)
        self._call = call
        self._staged: list[tuple[OutEdge, _Chunk]] = []
        self.made: set[int] = set()
        """Steps of which a former generation's value is in the log, and sent from there."""
        self.mates: Mates | None = None
        """Of a call that shares its rows out: with whom. What the log has of its items is not made again."""

    def whole(self, record: LogRecord) -> None:
        """A former generation has made all of the value that this mark is of, and the log has it."""
        self.made.add(record.step)
        if self.mates is not None:
            self.mates.remember(record.step, record.body)

    def _wrote_again(self, log: SendLog, step: int, first: int) -> None:
        self._say_whole(log, step, first)

    def _begin(self, step: int) -> bool:
        if step in self.made:
            return False
        self._hear()
        return super()._begin(step)

    def _put(
        self, way: OutEdge, payload: Payload | None, step: int, chunk: int, last: bool, consumers: tuple[int, ...]
    ) -> None:
        self._staged.append((way, _Chunk(payload, step, chunk, last, consumers)))

    def _finish(self, step: int) -> None:
        if self._staged:
            staged, self._staged = self._staged, []
            self._log(step, staged)
            _show(staged)

    def _log(self, step: int, staged: list[tuple[OutEdge, _Chunk]]) -> None:
        log = self._ports.log
        assert log is not None
        first = log.position
        for way, chunk in staged:
            way.write(log, *chunk)
        self._say_whole(log, step, first)

    def _say_whole(self, log: SendLog, step: int, first: int) -> None:
        items = self.mates.taken(step) if self.mates is not None else b""
        log.whole(self._call, step, first, max(way.state.hold for way in self._ways), items)

    def _hear(self) -> None:
        """Wait until all consumers have said what they have used, where that may be what is in no log. Raises
        `LogLost`."""
        unsure = [way for way in self._ports.ways if way.made is not None]
        for way in unsure:
            began = self._begin_wait(way.edge.id)
            while way.state.unheard:
                self._ports.endpoint.wait()
            self._end_wait(began)
        for way in unsure:
            way.made = None


class GroupPort(VersionPort):
    """Of a value that the ranks of a group make: nobody sees any of it before all of them have theirs in their logs
    (`protocol.agreement`)."""

    def __init__(self, ports: Rank, call: int, barrier: GroupBarrier, calls: int) -> None:
        """`calls`: of the whole flow."""
        super().__init__(ports, call)
        self._barrier, self._calls = barrier, calls
        self._former: dict[int, tuple[int, list[tuple[OutEdge, _Chunk]]]] = {}
        """By step, the generation that has made what the log has of it, and that."""

    def whole(self, record: LogRecord) -> None:
        """What counts of it is agreed upon when this generation has made it, too."""

    def take_over(self, way: OutEdge, payload: Payload | None, record: LogRecord, *, again: bool) -> None:
        """As for any port, but what may not count is kept back."""
        if not again:
            super().take_over(way, payload, record, again=again)
            return
        chunk = _Chunk(payload, record.step, record.chunk, record.last, record.consumers)
        self._former.setdefault(record.step, (record.generation, []))[1].append((way, chunk))

    def write_again(self, log: SendLog) -> None:
        """As for any port; what was kept back is lost."""
        super().write_again(log)
        self._former = {at: (LOST, chunks) for at, (_, chunks) in self._former.items()}

    def _finish(self, step: int) -> None:
        staged, self._staged = self._staged, []
        present = self._ports.endpoint.site.generation
        made, former = self._former.pop(step, (present, []))
        if staged and not former:
            self._log(step, staged)
        vote = made + 1 if former or staged else NOTHING
        while not self._agree(step, vote):
            for way in self._ways:
                way.void(step)
            self._hear()
            if staged:
                self._log(step, staged)
            _forget(former)
            former, vote = [], present + 1 if staged else NOTHING
        _show(former or staged)
        if former:
            _forget(staged)

    def _agree(self, step: int, vote: int) -> bool:
        began = self._begin_wait(-1)
        self._barrier.vote(step * self._calls + self._call, vote)
        while self._barrier.verdict is None:
            self._ports.endpoint.wait()
        self._end_wait(began)
        return self._barrier.verdict


def _show(chunks: list[tuple[OutEdge, _Chunk]]) -> None:
    for way, chunk in chunks:
        way.show(*chunk)


def _forget(chunks: list[tuple[OutEdge, _Chunk]]) -> None:
    """These are not sent."""
    for payload in {id(chunk.payload): chunk.payload for _, chunk in chunks}.values():
        if payload is not None:
            payload.free()
