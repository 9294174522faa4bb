"""The consumer's end of the transport `delta`, without I/O: it puts values together, and gives them to neighbours.

It delivers the values of a producer in the order in which the producer has announced them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh_dataplane.payload import HEAD
from rolemesh_delta.changes import Broken, Bytes, Difference, apply
from rolemesh_delta.messages import (
    GIVE,
    HAS,
    LACKS,
    PART,
    PART_BYTES,
    WANTS,
    At,
    Message,
    Value,
    count,
    digest,
    encode,
    fill,
    seed,
    slices,
)

__all__ = ["Ask", "Changed", "Deliver", "Receiving", "Reply"]

PATIENCE_S: Final = 5.0
"""Seconds without a part after which a neighbour has failed; one more for each consumer before it."""
TRIES: Final = 3
"""Maximum number of times that a consumer asks for a value whole, because what has come has other bits."""
_differences = msgspec.msgpack.Decoder(list[Difference]).decode


class Changed(Exception):
    """A value came several times, and each time with other bits than its producer had said: it changes on its way."""


@dataclass(frozen=True)
class Deliver:
    """The frames of a value are for the rank."""

    frames: Sequence[Any]


@dataclass(frozen=True)
class Reply:
    """A message to the other end of a connection that came from it. `edge`: that of a part; -1 for other messages."""

    to: bytes
    message: Message
    edge: int = -1


@dataclass(frozen=True)
class Ask:
    """A message to the neighbour at an address."""

    address: str
    message: Message


Effect: TypeAlias = Deliver | Reply | Ask
Key: TypeAlias = tuple[int, int]


@dataclass
class Coming:
    """A value that is announced and not complete."""

    value: Value
    head: bytes
    owner: bytes
    """The producer's connection."""
    source: str
    """The address of the neighbour that gives the parts; empty: the producer."""
    since: float
    """When the newest part came."""
    buffers: list[Bytes] = field(default_factory=list)
    """The consumer's own copy."""
    parts: list[Sequence[Any]] = field(default_factory=list)
    """The differences that have come."""
    last: bool = False
    """The last of them is among them."""
    taken: int = 0
    """Parts that have come."""
    applied: int = 0
    """Parts that are in `buffers`."""
    followers: list[bytes] = field(default_factory=list)
    done: bool = False
    tries: int = 0
    """How often the consumer has asked for all of it."""

    def begin(self, value: Value) -> None:
        """Take the value from its first part on."""
        self.value, self.source = value, value.source
        self.parts, self.last, self.taken, self.applied = [], False, 0, 0
        self.buffers = [] if value.changes else [np.empty(size, np.uint8) for size in value.sizes]

    def at(self, part: int, *, last: bool = False) -> At:
        """Return a part of this value."""
        return At(self.value.producer, self.value.stream, self.value.number, self.value.changes, part, last)


@dataclass
class Held:
    """A stream: its newest complete value, and those that come."""

    owner: bytes
    place: tuple[int, int, int]
    number: int = -1
    buffers: list[Bytes] = field(default_factory=list)
    parts: list[Sequence[Any]] = field(default_factory=list)
    """The differences by which the newest value came."""
    coming: deque[Coming] = field(default_factory=deque)


class Receiving:
    """All streams that reach one rank. `effects` has what the caller is to do, in order."""

    def __init__(self, *, part_bytes: int = PART_BYTES) -> None:
        self.effects: list[Effect] = []
        self._part_bytes = part_bytes
        self._held: dict[Key, Held] = {}
        self._newest: dict[tuple[int, int, int], Key] = {}
        """The stream of each chunk."""
        self._waiting: dict[Key, list[tuple[bytes, At]]] = {}
        """Neighbours that want a value which is not here yet."""
        self._orders: dict[bytes, deque[Coming | Sequence[Any]]] = {}
        """The frames and values of each connection, from the first value that is not complete on."""

    @property
    def fetches(self) -> bool:
        """True if a neighbour is giving a value, so that `tick` must be called."""
        return any(held.coming and held.coming[0].source for held in self._held.values())

    def plain(self, owner: bytes, frames: Sequence[Any]) -> None:
        """Deliver frames behind all that the same connection has announced."""
        if order := self._orders.get(owner):
            order.append(frames)
        else:
            self.effects.append(Deliver(frames))

    def value(self, owner: bytes, value: Value, head: bytes, now: float) -> None:
        """Take what a producer says about its next value, or that an announced one comes whole.

        Like all that takes messages, it raises `Changed`.
        """
        key = value.producer, value.stream
        held = self._held.get(key)
        if held is None or held.owner != owner:
            _, _, _, edge, rank, _, _, chunk, *_ = HEAD.unpack_from(head)
            held = self._new(key, Held(owner, (edge, rank, chunk)))
        coming = next((each for each in held.coming if each.value.number == value.number), None)
        if coming is not None:
            for each in coming.followers:
                self._reply(each, LACKS, coming.at(0))
            coming.followers = []
            coming.begin(value)
            coming.since = now
            self._fetch(held, coming)
        elif value.number > held.number:
            coming = Coming(value, head, owner, value.source, now)
            coming.begin(value)
            held.coming.append(coming)
            self._orders.setdefault(owner, deque()).append(coming)
            if held.coming[0] is coming:
                self._start(held, now)
        self._serve(key)

    def part(self, at: At, frames: Sequence[Any], now: float, source: str = "") -> None:
        """Take the next part of a value from the neighbour at `source`, or from the producer. Others are dropped: they
        come from a neighbour that has failed."""
        held, coming = self._find(at)
        if held is None or coming is None or coming.source != source:
            return
        if coming.value.changes != at.changes or coming.taken != at.part:
            return
        coming.since = now
        for each in coming.followers:
            self.effects.append(Reply(each, (PART, encode(at), frames), held.place[0]))
        coming.taken += 1
        coming.last = at.last
        if at.changes:
            coming.parts.append(frames)
        else:
            try:
                fill(coming.buffers, at.part, frames, self._part_bytes)
                coming.applied += 1
            except ValueError:
                self._want_whole(held, coming)
                return
        if held.coming[0] is coming:
            self._go_on(held, now)

    def give(self, follower: bytes, at: At) -> None:
        """Give a neighbour the parts of a value from one on: now, or as they come."""
        self._waiting.setdefault((at.producer, at.stream), []).append((follower, at))
        self._serve((at.producer, at.stream))

    def lacks(self, at: At) -> None:
        """Ask the producer for what a neighbour does not have."""
        _, coming = self._find(at)
        if coming is not None and coming.source:
            self._fall_back(coming, failed=False)

    def lost(self, address: str) -> None:
        """Ask the producers for what the neighbour at this address was to give."""
        for held in self._held.values():
            if held.coming and held.coming[0].source == address:
                self._fall_back(held.coming[0], failed=True)

    def tick(self, now: float) -> None:
        """Ask the producers for what neighbours have not given for too long."""
        for held in self._held.values():
            coming = held.coming[0] if held.coming else None
            if coming is not None and coming.source and now - coming.since > PATIENCE_S + coming.value.depth:
                self._fall_back(coming, failed=True)

    def _find(self, at: At) -> tuple[Held | None, Coming | None]:
        held = self._held.get((at.producer, at.stream))
        if held is None:
            return None, None
        return held, next((each for each in held.coming if each.value.number == at.number), None)

    def _new(self, key: Key, held: Held) -> Held:
        """Add a stream. Forget those that it replaces: of an earlier connection, or of the same chunk."""
        for other, each in [*self._held.items()]:
            if each.place[:2] != held.place[:2]:
                continue
            if each.owner != held.owner:
                for coming in each.coming:
                    coming.done, coming.head = True, b""
                self._flush(each.owner)
                del self._held[other]
            elif each.place == held.place and not each.coming:
                del self._held[other]
        self._held[key] = held
        self._newest[held.place] = key
        return held

    def _start(self, held: Held, now: float) -> None:
        """Begin with the next value of a stream: all before it are complete."""
        coming = held.coming[0]
        coming.since = now
        if coming.value.changes and held.number != coming.value.number - 1:
            self._want_whole(held, coming)
            return
        self._fetch(held, coming)
        self._go_on(held, now)

    def _fetch(self, held: Held, coming: Coming) -> None:
        if coming.source and held.coming[0] is coming:
            self.effects.append(Ask(coming.source, (GIVE, encode(coming.at(coming.taken)), [])))

    def _fall_back(self, coming: Coming, *, failed: bool) -> None:
        coming.source = ""
        self._reply(coming.owner, WANTS, coming.at(coming.taken, last=failed))

    def _want_whole(self, held: Held, coming: Coming) -> None:
        coming.tries += 1
        if coming.tries > TRIES:
            edge, rank, _ = held.place
            raise Changed(f"a value of edge {edge} from rank {rank} came {TRIES} times with other bits than it left")
        told = msgspec.structs.replace(coming.at(0), changes=False)
        coming.source, coming.taken = "", -1  # until the producer announces it again
        self._reply(coming.owner, WANTS, told)

    def _go_on(self, held: Held, now: float) -> None:
        """Apply what has come of the first value; if it is complete, begin with the next."""
        coming = held.coming[0]
        if coming.value.changes:
            try:
                self._apply(held, coming)
            except (Broken, IndexError, *UNDECODABLE):
                held.number = -1
                self._want_whole(held, coming)
                return
            if not coming.last or coming.applied < coming.taken:
                return
            held.parts = coming.parts
        else:
            if coming.applied < count(coming.value.sizes, self._part_bytes):
                return
            if digest(coming.buffers) != coming.value.digest:
                self._want_whole(held, coming)
                return
            if [*map(len, held.buffers)] == coming.value.sizes:
                for old, new in zip(held.buffers, coming.buffers, strict=True):
                    np.copyto(old, new)
            else:
                held.buffers = [each.copy() for each in coming.buffers]
            held.parts = []
        held.number, coming.done = coming.value.number, True
        held.coming.popleft()
        self._reply(coming.owner, HAS, coming.at(0))
        self._flush(coming.owner)
        key = coming.value.producer, coming.value.stream
        self._serve(key)
        if held.coming:
            self._start(held, now)
        elif self._newest[held.place] != key:
            self._held.pop(key, None)

    def _apply(self, held: Held, coming: Coming) -> None:
        while coming.applied < coming.taken:
            for change in _differences(b"".join(coming.parts[coming.applied])):
                value, buffer = coming.value, held.buffers[len(coming.buffers)]
                apply(buffer, change, seed(value.producer, value.stream, value.number, len(coming.buffers)))
                coming.buffers.append(buffer.copy())  # the consumer may write to what it gets
            coming.applied += 1
        if coming.last and len(coming.buffers) != len(held.buffers):
            raise Broken("buffers are missing")

    def _flush(self, owner: bytes) -> None:
        order = self._orders.get(owner)
        while order:
            first = order[0]
            if not isinstance(first, Coming):
                self.effects.append(Deliver(first))
            elif not first.done:
                return
            elif first.head:
                self.effects.append(Deliver([first.head, *first.buffers]))
            order.popleft()
        self._orders.pop(owner, None)

    def _serve(self, key: Key) -> None:
        """Answer the neighbours that want a value of a stream, as far as it is here."""
        held = self._held.get(key)
        waiting = self._waiting.pop(key, [])
        later = [
            (follower, at) for follower, at in waiting if not (held is not None and self._gives(held, follower, at))
        ]
        if later:
            self._waiting[key] = later

    def _gives(self, held: Held, follower: bytes, at: At) -> bool:
        """Give what is here. Return False if the neighbour has to wait."""
        _, coming = self._find(at)
        if coming is not None:
            if coming.value.changes != at.changes:
                if at.changes:
                    self._reply(follower, LACKS, at)
                return at.changes
            if coming.taken < 0:
                return False
            what = coming.parts if at.changes else coming.buffers
            if self._give(what, follower, at, coming.taken, last=coming.last):
                coming.followers.append(follower)
        elif at.number > held.number:
            return False
        elif at.number < held.number or (at.changes and not held.parts):
            self._reply(follower, LACKS, at)
        elif at.changes:
            self._give(held.parts, follower, at, len(held.parts), last=True)
        else:
            sizes = [*map(len, held.buffers)]
            self._give(held.buffers, follower, at, count(sizes, self._part_bytes), last=True)
        return True

    def _give(self, what: Sequence[Any], follower: bytes, at: At, end: int, *, last: bool) -> bool:
        """Give parts. Return False, and tell the neighbour to ask the producer, if there is no memory for them."""
        edge = self._held[at.producer, at.stream].place[0]
        for part in range(at.part, end):
            told = msgspec.structs.replace(at, part=part, last=last and part == end - 1)
            # Copies of a whole value go out, since its memory changes while they may still be on their way.
            try:
                frames = what[part] if at.changes else [bytes(each) for each in slices(what, part, self._part_bytes)]
            except MemoryError:
                self._reply(follower, LACKS, at)
                return False
            self.effects.append(Reply(follower, (PART, encode(told), frames), edge))
        return True

    def _reply(self, to: bytes, kind: bytes, at: At) -> None:
        self.effects.append(Reply(to, (kind, encode(at), [])))
