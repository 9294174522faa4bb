"""The layout of the frames that every transport carries, and the queue at which they arrive.

The head of a frame is fixed: tag, form, and for data edge, producer, generation, step and chunk. Sizes follow, then the
codec's header.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import zmq

from rolemesh_durable import transports
from rolemesh_durable.dataplane.codec import Buffer, encode, flatten
from rolemesh_durable.dataplane.linking import put_in_slots
from rolemesh_durable.dataplane.places import renamed, runs_of
from rolemesh_durable.dataplane.shm import Slot, SlotPool
from rolemesh_durable.dataplane.slot_reader import SlotReader
from rolemesh_durable.transports import Stamp

__all__ = ["Inbox", "Payload", "encode_control"]

DATA, CREDIT, CONTROL, ASK, BARRIER, SHARE, CHANNEL = 1, 2, 3, 4, 5, 6, 7
INLINE, IN_SLOT, IN_FRAMES, END = 0, 1, 2, 3
"""Forms of data: buffers in the frame, in shared-memory slots, in the frames that follow; no more chunks."""

HEAD = struct.Struct("<BBBxIIIqIII12x")
"""tag, form, last, edge, producer rank, generation, step, chunk, header's bytes, number of buffers. It has 48 bytes, so
alignment to 16 bytes in the rest is also alignment in the frame."""
CREDITS = struct.Struct("<BxxxIIIq")
"""tag, edge, consumer rank, generation, step up to which the consumer has released everything."""
ASKS = struct.Struct("<BxxxIIIqq")
"""tag, edge, consumer rank, generation, first step that the consumer lacks, step up to which it has released
everything."""
BARRIERS = struct.Struct("<BBxxIIIq")
"""tag, kind, rank, generation, vote, position: see `rolemesh_durable.protocol.barrier`, and of votes `.agreement`."""
SHARES = struct.Struct("<BBxxIIIqq")
"""tag, kind, edge, rank, generation, step, item: see `rolemesh_durable.protocol.rank.mates`."""
CHANNELS = struct.Struct("<BBHIII")
"""tag, length of the channel's name, zero, number of the sender's role in the flow, rank, generation. The name and the
body follow: see `rolemesh_durable.rank.channel`."""


def encode_control(message: bytes) -> list[bytes]:
    """Return the frames in which an agent pushes an encoded `AgentToRank` message to ``addresses["control"]`` of a
    rank."""
    return [bytes([CONTROL]) + message]


class Payload(transports.Payload):
    """A chunk encoded once for all its consumers, in memory that nobody writes to, because the value may change
    afterwards.

    Up to the threshold it is `inline` bytes; beyond it, it lies in warm slots until every consumer has released it.
    """

    __slots__ = ("body", "hlen", "log", "nbytes", "place", "pool", "sizes", "slots", "users")

    def __init__(self, value: Any, pool: SlotPool, threshold: int, reader: SlotReader | None = None) -> None:
        """Encode the value. Data in slots that `reader` has handed out unchanged is not copied."""
        header, buffers = encode(value)
        self.sizes: Sequence[int] = [len(buffer) for buffer in buffers]
        self.nbytes = sum(self.sizes)
        self.hlen = len(header)
        self.pool = pool
        self.place = ""
        """Place of the buffers in slots (`rolemesh_durable.dataplane.places`)."""
        self.slots: list[Slot] = []
        self.users = 0
        """Number of edges that have sent it and may need it again."""
        self.log = -1
        """Its first position in the send log, if there is one."""
        if self.nbytes > threshold:
            self.place, self.slots = put_in_slots(buffers, pool, reader)
            self.body = flatten(header, self.sizes, ())
        else:
            self.body = flatten(header, self.sizes, buffers)
        """Sizes, header and, unless they lie in slots, the buffers, as `codec.flatten` lays them out."""

    @classmethod
    def logged(
        cls, body: bytes, hlen: int, sizes: Sequence[int], place: str, slots: list[Slot], pool: SlotPool, log: int
    ) -> Self:
        """Return a payload that a former generation of the rank encoded, from the log."""
        payload = cls.__new__(cls)
        payload.body, payload.hlen, payload.sizes, payload.place, payload.slots = body, hlen, sizes, place, slots
        payload.nbytes, payload.pool, payload.users, payload.log = sum(sizes), pool, 0, log
        return payload

    def frame(self, stamp: Stamp) -> bytes:
        """Return the only frame of a payload that is not in slots."""
        return HEAD.pack(DATA, INLINE, *stamp, self.hlen, len(self.sizes)) + self.body

    def descriptor(self, stamp: Stamp) -> bytes:
        """Return the frame that tells a reader on this node the place of the buffers."""
        return HEAD.pack(DATA, IN_SLOT, *stamp, self.hlen, len(self.sizes)) + self.body + self.place.encode()

    def frames(self, stamp: Stamp) -> list[Buffer]:
        """Return head and buffers as separate frames, for another node: views of the slots, which stay until
        released."""
        frames: list[Buffer] = [HEAD.pack(DATA, IN_FRAMES, *stamp, self.hlen, len(self.sizes)) + self.body]
        slots = {slot.name: slot for slot in self.slots}
        for name, offset, count in runs_of(self.place, len(self.sizes)):
            at = len(frames) - 1
            frames += slots[name].views(self.sizes[at : at + count], offset)
        return frames

    def rescue(self) -> None:
        """Copy the content of slots whose files somebody has removed into new ones. Raises `TransportError`."""
        self.log = -1
        if self.slots:
            new = {slot.name: self.pool.rescue(slot) for slot in self.slots}
            self.place, self.slots = renamed(self.place, lambda name: new[name].name), list(new.values())

    def free(self) -> None:
        """Remove a user. After the last one the slots are ready for the next value."""
        self.users -= 1
        if self.users <= 0:
            slots, self.slots = self.slots, []
            for slot in slots:
                self.pool.release(slot)


class Inbox(transports.Inbox):
    """The queue at which all messages to a rank arrive."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], path: str) -> None:
        self.context = context
        self.socket: zmq.Socket[bytes] = context.socket(zmq.PULL)
        self.socket.set_hwm(0)
        self.path = path
        self.address = f"ipc://{path}"
        self.socket.bind(self.address)
        self._inside = ""

    def pusher(self) -> zmq.Socket[bytes]:
        """Return a socket that delivers frames from inside this process. Not thread-safe: one per thread of a
        transport."""
        if not self._inside:
            self._inside = f"inproc://inbox-{id(self)}"
            self.socket.bind(self._inside)
        pusher: zmq.Socket[bytes] = self.context.socket(zmq.PUSH)
        pusher.set_hwm(0)
        pusher.connect(self._inside)
        return pusher

    def close(self) -> None:
        """Remove the socket."""
        self.socket.close(linger=0)
        Path(self.path).unlink(missing_ok=True)
