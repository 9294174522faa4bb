"""A value encoded once for all its consumers, and the frames that carry it.

The head of a frame is fixed: tag, form, edge, producer, generation, step and chunk. Sizes follow, then the codec's
header.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Self

from rolemesh_dataplane import transports
from rolemesh_dataplane.codec import Buffer, encode, flatten
from rolemesh_dataplane.dtypes import dtypes_of
from rolemesh_dataplane.lending import Lender
from rolemesh_dataplane.linking import put_in_slots
from rolemesh_dataplane.places import renamed, runs_of
from rolemesh_dataplane.shm import SlotPool, ValueSlot
from rolemesh_dataplane.slot_reader import SlotReader
from rolemesh_dataplane.transports import Stamp

__all__ = ["DATA", "END", "HEAD", "INLINE", "IN_FRAMES", "IN_SLOT", "Payload"]

DATA = 1
"""Tag of a frame with data: its first byte. An engine uses other tags for its own frames."""
INLINE, IN_SLOT, IN_FRAMES, END = 0, 1, 2, 3
"""Forms of data: buffers in the frame, in shared-memory slots, in the frames that follow; no more chunks."""

HEAD = struct.Struct("<BBBxIIIqIII12x")
"""tag, form, last, edge, producer rank, generation, step, chunk, header's bytes, number of buffers. It has 48 bytes, so
alignment to 16 bytes in the rest is also alignment in the frame."""


class Payload(transports.Payload):
    """A chunk encoded once for all its consumers, in memory that nobody writes to, because the value may change
    afterwards.

    Up to the threshold it is `inline` bytes; beyond it, it lies in warm slots until every consumer has released it.
    """

    __slots__ = ("body", "hlen", "log", "nbytes", "place", "pool", "sizes", "slots", "users")

    def __init__(
        self, value: Any, pool: SlotPool, threshold: int, reader: SlotReader | None = None, lender: Lender | None = None
    ) -> None:
        """Encode the value. Data in slots that `reader` has handed out unchanged is not copied, nor what `lender`
        has."""
        header, buffers = encode(value)
        self.sizes: Sequence[int] = [len(buffer) for buffer in buffers]
        self.nbytes = sum(self.sizes)
        self.hlen = len(header)
        self.pool = pool
        self.place = ""
        """Place of the buffers in slots (`rolemesh_dataplane.places`)."""
        self.slots: list[ValueSlot] = []
        self.users = 0
        """Number of edges that have sent it and may need it again."""
        self.log = -1
        """Its first position in the send log, if there is one."""
        if self.nbytes > threshold:
            self.place, self.slots = put_in_slots(buffers, pool, reader, lender)
            self.body = flatten(header, self.sizes, ())
        else:
            self.body = flatten(header, self.sizes, buffers)
        """Sizes, header and, unless they lie in slots, the buffers, as `codec.flatten` lays them out."""

    @classmethod
    def logged(
        cls, body: bytes, hlen: int, sizes: Sequence[int], place: str, slots: list[ValueSlot], pool: SlotPool, log: int
    ) -> Self:
        """Return a payload that a former generation of the rank encoded, from the log."""
        payload = cls.__new__(cls)
        payload.body, payload.hlen, payload.sizes, payload.place, payload.slots = body, hlen, sizes, place, slots
        payload.nbytes, payload.pool, payload.users, payload.log = sum(sizes), pool, 0, log
        return payload

    def begins_at(self, log: int) -> None:
        """Set its first position in the send log."""
        self.log = log

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

    def dtypes(self) -> list[str]:
        """Return the dtype of each buffer."""
        start = 8 * len(self.sizes)
        return dtypes_of(self.body[start : start + self.hlen], len(self.sizes))

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
