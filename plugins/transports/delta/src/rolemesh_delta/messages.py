"""The messages of the transport `delta`: values of a stream, their parts, and requests for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import xxhash

from rolemesh_dataplane.pieces import PIECE
from rolemesh_delta.changes import Bytes

__all__ = ["At", "Message", "Value", "count", "digest", "fill", "seed", "slices"]

PLAIN, VALUE, PART = b"p", b"v", b"d"
"""Producer → consumer: frames as they are; a value, whose parts follow or lie at a neighbour. Producer or neighbour →
consumer: one part."""
HAS, WANTS = b"h", b"w"
"""Consumer → producer: it has a value; it wants the parts from one on, because nobody else gives them."""
GIVE, LACKS = b"g", b"l"
"""Consumer → neighbour: it wants the parts from one on. Neighbour → consumer: the value is not here any more."""
PART_BYTES: Final = 1 << 20
"""Bytes of a whole value's part: a relay passes on whole parts."""
BUFFERS: Final = 10_000
"""Maximum number of buffers of a value."""
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]
"""A message with a number beyond this is damaged."""

Message = tuple[bytes, bytes, Sequence[Any]]
"""Kind, what it tells (`Value` or `At`), frames."""


class At(msgspec.Struct, frozen=True, array_like=True):
    """A part of a value: the producer's transport, its stream, the number of the value, how it travels, the part.

    `last`: a part: no other follows; `WANTS`: the neighbour has failed that should have given it.
    """

    producer: int
    stream: Count
    number: Count
    changes: bool
    part: Count
    last: bool = False


class Value(msgspec.Struct, frozen=True, array_like=True):
    """A value of a stream. `changes`: its parts are differences from the value before, otherwise all bytes.

    `sizes`: bytes of the buffers. `digest`: xxh3 of all of them; 0 with `changes`, which have digests of their own.
    `source`: the address of the consumer that gives the parts; empty: they follow. `depth`: consumers before this one.
    """

    producer: int
    stream: Count
    number: Count
    changes: bool
    sizes: Annotated[list[Count], msgspec.Meta(max_length=BUFFERS)]
    digest: int
    source: str
    depth: Count


def seed(producer: int, stream: int, number: int, buffer: int) -> int:
    """Return the seed of a difference's checksum: that of another value, or of another buffer, does not fit."""
    return (producer ^ stream << 48 ^ number << 16 ^ buffer) & 0xFFFF_FFFF_FFFF_FFFF


def count(sizes: Sequence[int], part: int = PART_BYTES) -> int:
    """Return the number of parts of a whole value."""
    return max(1, -(-sum(sizes) // part))


def slices(buffers: Sequence[Any], part: int, size: int = PART_BYTES) -> Iterator[memoryview]:
    """Yield the bytes of a whole value's part, as views of at most `PIECE` bytes."""
    start, end = part * size, (part + 1) * size
    at = 0
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        low, high = max(start - at, 0), min(end - at, len(view))
        for first in range(low, high, PIECE):
            yield view[first : min(first + PIECE, high)]
        at += len(view)


def fill(buffers: Sequence[Bytes], part: int, frames: Sequence[Any], size: int = PART_BYTES) -> None:
    """Write a whole value's part. Raises `ValueError` if it has another size than it should."""
    start, at, end = part * size, 0, (part + 1) * size
    given = sum(map(len, frames))
    flat = iter(frames)
    frame = memoryview(b"")
    if given != min(end, sum(map(len, buffers))) - start:
        raise ValueError(f"a part of {given} bytes")
    for buffer in buffers:
        low, high = max(start - at, 0), min(end - at, len(buffer))
        while low < high:
            while not len(frame):
                frame = memoryview(next(flat)).cast("B")
            taken = min(len(frame), high - low)
            buffer[low : low + taken] = np.frombuffer(frame[:taken], np.uint8)
            frame, low = frame[taken:], low + taken
        at += len(buffer)


def digest(buffers: Sequence[Any]) -> int:
    """Return the checksum of a whole value."""
    whole = xxhash.xxh3_64()
    for buffer in buffers:
        whole.update(buffer)
    return whole.intdigest()


encode = msgspec.msgpack.Encoder().encode
decode_at = msgspec.msgpack.Decoder(At).decode
decode_value = msgspec.msgpack.Decoder(Value).decode
