"""The producer's end of the transport `delta`, without I/O: which messages bring a value to a consumer.

A value that several consumers take leaves the producer once. The first consumer gets its parts, and each other one the
address of the consumer before it. A consumer whose neighbour does not give them asks the producer.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import zstandard

from rolemesh_delta.changes import Bytes, difference
from rolemesh_delta.messages import (
    HAS,
    PART,
    PART_BYTES,
    VALUE,
    WANTS,
    At,
    Message,
    Value,
    count,
    digest,
    encode,
    seed,
    slices,
)

__all__ = ["Item", "Producing"]

COMPARED: Final = 8 << 20
"""Bytes of the buffers that are compared before their differences leave, so that both ends work at the same time."""
TRIES: Final = 3
"""Differences without gain after which a stream is sent whole; failures after which a consumer is no relay any more."""
PAUSE: Final = 50
"""Values that are sent whole before the next attempt."""
NO_ROOM = (MemoryError, zstandard.ZstdError)
"""Errors of a comparison for which there is no memory."""


@dataclass(frozen=True)
class Item:
    """A value to send: what identifies it, its step, its buffers in the producer's slots and their dtypes."""

    identity: object
    step: int
    buffers: Sequence[Any]
    dtypes: Sequence[str]

    @property
    def sizes(self) -> list[int]:
        """The bytes of each buffer."""
        return [*map(len, self.buffers)]


@dataclass
class Sent:
    """A value that some consumer may lack: the head and the neighbour of each consumer."""

    item: Item
    heads: dict[Hashable, bytes] = field(default_factory=dict)
    sources: dict[Hashable, Hashable] = field(default_factory=dict)
    digest: int | None = None


@dataclass
class Stream:
    """The values that the same consumers get for one chunk of one edge."""

    item: Item
    place: Hashable
    number: int = -1
    base: list[Bytes] = field(default_factory=list)
    """A copy of the newest value."""
    kept: dict[int, Sent] = field(default_factory=dict)
    sent: dict[Hashable, int] = field(default_factory=dict)
    """The newest number that each consumer was sent."""
    has: dict[Hashable, int] = field(default_factory=dict)
    """The newest number that each consumer has."""
    left: set[Hashable] = field(default_factory=set)
    """Consumers that get later values in another stream, and have not acknowledged all of this one."""
    parts: list[bytes] | None = None
    """The differences of the newest value from the one before; None if nobody computes them."""
    chains: dict[bool, list[Hashable]] = field(default_factory=lambda: {True: [], False: []})
    """The consumers that were sent the newest value as differences (True) and whole."""
    failed: int = 0
    """Differences in a row without gain; below 0: values to send whole first."""


class Producing:
    """The streams of one rank. `Place` is what the caller tells apart: an edge and a chunk."""

    def __init__(self, name: int, level: int, *, relays: bool = True, part_bytes: int = PART_BYTES) -> None:
        """`name`: a number that no other producer of the job has. `level`: of zstandard."""
        self._name, self._level, self._relays, self._part_bytes = name, level, relays, part_bytes
        self._streams: dict[int, Stream] = {}
        self._of: dict[tuple[Hashable, Hashable], int] = {}
        """The stream of each consumer's values, by place."""
        self._places: dict[Hashable, list[int]] = {}
        self._addresses: dict[Hashable, str] = {}
        self._failures: dict[Hashable, int] = {}
        """How often a consumer has failed as a relay."""
        self._silent: set[Hashable] = set()
        """Consumers that have acknowledged nothing since they failed as relays."""
        self._next = 0

    def opened(self, peer: Hashable, address: str) -> None:
        """Note the address at which other consumers reach `peer`."""
        self._addresses[peer] = address

    def closed(self, peer: Hashable) -> None:
        """Forget a consumer."""
        self._addresses.pop(peer, None)
        self._failures.pop(peer, None)
        self._silent.discard(peer)
        for key in [key for key in self._of if key[0] == peer]:
            del self._of[key]
        for index, stream in [*self._streams.items()]:
            if peer in stream.sent:
                self._leave(peer, index)

    def place(self, index: int) -> Hashable:
        """Return the place of a stream; None if there is no such stream any more."""
        stream = self._streams.get(index)
        return None if stream is None else stream.place

    def send(self, peer: Hashable, place: Hashable, item: Item, head: bytes) -> Iterator[Message]:
        """Yield the messages that bring `peer` a value with its own head."""
        index = self._stream(peer, place, item)
        stream = self._streams[index]
        compares = stream.item.identity is not item.identity or stream.number < 0
        if compares:
            compares = self._advance(stream, item)
        number = stream.number
        sent = stream.kept.setdefault(number, Sent(item))
        sent.heads[peer] = head
        follows = stream.sent.get(peer) == number - 1
        stream.sent[peer] = number
        stream.has.setdefault(peer, number - 1)
        if not compares:
            yield from self._announce(peer, index, number, changes=follows and stream.parts is not None)
            return
        if follows:
            stream.chains[True].append(peer)
            yield VALUE, encode(self._value(index, number, changes=True)), [head]
        try:
            for at, data, last in self._compare(index, stream):
                if follows:
                    yield self._part(index, number, at, [data], last=last)
        except NO_ROOM:  # the value itself needs no memory on its way
            follows = self._keep_whole(stream, item)
            if peer in stream.chains[True]:
                stream.chains[True].remove(peer)
        if not follows:
            yield from self._announce(peer, index, number, changes=False)

    def answered(self, peer: Hashable, kind: bytes, at: At) -> Iterator[Message]:
        """Yield what an acknowledgement or a request of `peer` asks for."""
        stream = self._streams.get(at.stream)
        if at.producer != self._name or stream is None or peer not in stream.sent:
            return
        if kind == HAS:
            stream.has[peer] = max(stream.has[peer], min(at.number, stream.sent[peer]))
            self._silent.discard(peer)
            if peer in stream.left and stream.has[peer] >= stream.sent[peer]:
                self._leave(peer, at.stream)
            else:
                self._tidy(stream)
        elif kind == WANTS and at.number in stream.kept and peer in stream.kept[at.number].heads:
            sent = stream.kept[at.number]
            neighbour = sent.sources.pop(peer, None)
            if at.last and neighbour in self._addresses:
                self._failures[neighbour] = self._failures.get(neighbour, 0) + 1
                self._silent.add(neighbour)
            parts = (stream.parts or []) if at.number == stream.number else []
            if at.changes and at.part < len(parts):
                yield from self._parts(at.stream, at.number, at.part, changes=True)
            elif at.changes or not at.part:
                yield VALUE, encode(self._value(at.stream, at.number, changes=False)), [sent.heads[peer]]
                yield from self._parts(at.stream, at.number, 0, changes=False)
            else:
                yield from self._parts(at.stream, at.number, at.part, changes=False)

    def _stream(self, peer: Hashable, place: Hashable, item: Item) -> int:
        """Return the stream that brings `peer` this value: one that is at it, the peer's own, or a new one."""
        own = self._of.get((peer, place))
        there = self._places.setdefault(place, [])
        found = next((each for each in there if self._streams[each].item.identity is item.identity), None)
        if found is None and own is not None and self._streams[own].item.step < item.step:
            found = own
        if found is None:
            found, self._next = self._next, self._next + 1
            self._streams[found] = Stream(item, place)
            there.append(found)
        if own is not None and own != found:
            if self._streams[own].has[peer] < self._streams[own].sent[peer]:
                self._streams[own].left.add(peer)
            else:
                self._leave(peer, own)
        self._of[peer, place] = found
        self._streams[found].left.discard(peer)
        return found

    def _leave(self, peer: Hashable, index: int) -> None:
        stream = self._streams[index]
        stream.sent.pop(peer, None)
        stream.has.pop(peer, None)
        stream.left.discard(peer)
        for chain in stream.chains.values():
            if peer in chain:
                chain.remove(peer)
        if stream.sent:
            self._tidy(stream)
            return
        del self._streams[index]
        for there in self._places.values():
            if index in there:
                there.remove(index)

    @staticmethod
    def _tidy(stream: Stream) -> None:
        """Let go of the values that all consumers have."""
        low = min(stream.has.values())
        for number in [each for each in stream.kept if each <= low]:
            del stream.kept[number]

    def _advance(self, stream: Stream, item: Item) -> bool:
        """Make `item` the newest value. Return True if its differences are to be computed."""
        members = [number for peer, number in stream.sent.items() if peer not in stream.left]
        follows = stream.number >= 0 and stream.number in members and stream.failed >= 0
        compares = follows and item.sizes == [*map(len, stream.base)]
        stream.item, stream.number, stream.parts = item, stream.number + 1, None
        stream.chains = {True: [], False: []}
        if compares:
            return True
        if stream.failed < 0:
            stream.failed = stream.failed + 1 or TRIES - 1  # after the pause, one attempt decides
        return self._keep_whole(stream, item)

    @staticmethod
    def _keep_whole(stream: Stream, item: Item) -> bool:
        """Make the base equal to `item`, which is sent whole. Return False. Without memory for it there is no base."""
        new = [np.frombuffer(each, np.uint8) for each in item.buffers]
        stream.parts = None
        if item.sizes != [*map(len, stream.base)]:
            stream.base = []
            try:
                stream.base = [np.empty_like(each) for each in new]
            except MemoryError:
                return False
        for old, now in zip(stream.base, new, strict=True):
            np.copyto(old, now)
        return False

    def _compare(self, number: int, stream: Stream) -> Iterator[tuple[int, bytes, bool]]:
        """Yield the differences of the newest value of stream `number`, and make the base equal to it."""
        made: list[bytes] = []
        part, size, new = [], 0, [np.frombuffer(each, np.uint8) for each in stream.item.buffers]
        for index, (old, now, dtype) in enumerate(zip(stream.base, new, stream.item.dtypes, strict=True), 1):
            marked = seed(self._name, number, stream.number, index - 1)
            part.append(difference(old, now, dtype, self._level, marked))
            size += len(now)
            if size >= COMPARED or index == len(new):
                made.append(encode(part))
                part, size = [], 0
                yield len(made) - 1, made[-1], index == len(new)
        stream.parts = made
        gains = 2 * sum(map(len, made)) < sum(stream.item.sizes)
        stream.failed = 0 if gains else -PAUSE if stream.failed + 1 >= TRIES else stream.failed + 1

    def _announce(self, peer: Hashable, index: int, number: int, *, changes: bool) -> Iterator[Message]:
        """Tell `peer` of the newest value: its neighbour gives the parts, or they follow."""
        stream = self._streams[index]
        sent, chain = stream.kept[number], stream.chains[changes]
        relays = [each for each in chain if self._may_relay(each)]
        if not relays and not changes:  # who makes the value of differences can give all of it, too
            relays = [each for each in stream.chains[True] if self._may_relay(each)]
        if not self._relays or peer in relays:
            relays = []
        chain.append(peer)
        address = ""
        if relays:
            sent.sources[peer], address = relays[-1], self._addresses[relays[-1]]
        told = self._value(index, number, changes=changes, source=address, depth=len(relays))
        yield VALUE, encode(told), [sent.heads[peer]]
        if not relays:
            yield from self._parts(index, number, 0, changes=changes)

    def _may_relay(self, peer: Hashable) -> bool:
        return peer in self._addresses and peer not in self._silent and self._failures.get(peer, 0) < TRIES

    def _value(self, index: int, number: int, *, changes: bool, source: str = "", depth: int = 0) -> Value:
        sent = self._streams[index].kept[number]
        if not changes and sent.digest is None:
            sent.digest = digest(sent.item.buffers)
        found = 0 if changes or sent.digest is None else sent.digest
        return Value(self._name, index, number, changes, sent.item.sizes, found, source, depth)

    def _parts(self, index: int, number: int, first: int, *, changes: bool) -> Iterator[Message]:
        stream = self._streams[index]
        if changes:
            made = stream.parts or []
            for at in range(first, len(made)):
                yield self._part(index, number, at, [made[at]], last=at == len(made) - 1)
            return
        item = stream.kept[number].item
        parts = count(item.sizes, self._part_bytes)
        for at in range(first, parts):
            told = At(self._name, index, number, False, at, at == parts - 1)
            yield PART, encode(told), [*slices(item.buffers, at, self._part_bytes)]

    def _part(self, index: int, number: int, at: int, data: list[bytes], *, last: bool) -> Message:
        told = At(self._name, index, number, True, at, last)
        return PART, encode(told), [*slices(data, 0, len(data[0]))]
