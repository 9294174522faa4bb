"""What a rank had sent and others still needed when a snapshot was persisted: a file of records beside its state.

A record is a chunk of a value, or the mark that none follows. A payload that went to several edges is stored once.
Values are encoded as they were sent, by `rolemesh_durable.dataplane.codec`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rolemesh_durable.checkpoint.layout import SnapshotError
from rolemesh_durable.checkpoint.reading import map_file
from rolemesh_durable.checkpoint.send_log import LogRecord
from rolemesh_durable.dataplane.codec import Buffer, Received, decode
from rolemesh_durable.protocol.log_kinds import CHUNK, END, TAKEN

__all__ = ["InFlight", "after", "read", "write"]

_MAGIC = b"rmedges1"
_FRAME = struct.Struct("<QQ")
"""bytes of the head, bytes of the buffers with what aligns them."""
_ALIGNMENT = 64


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """`payload` counts the payloads of a file: the first record with a number has the bytes."""

    edge: int
    step: int
    chunk: int
    last: bool
    end: bool
    consumers: tuple[int, ...]
    payload: int
    header: bytes
    sizes: tuple[int, ...]


class InFlight(msgspec.Struct, frozen=True):
    """Chunk number `chunk` of what a producer made at `step` for the ranks `consumers` at the end of `edge`.

    `last`: it is the last one. `end`: it is no chunk, but the mark that no chunk follows; or, with a `header`, what the
    rank itself has taken from the edge.
    """

    edge: int
    step: int
    chunk: int
    last: bool
    end: bool
    consumers: tuple[int, ...]
    header: bytes
    buffers: tuple[Buffer, ...]

    def value(self) -> Any:
        """The chunk's value; its arrays are views of the file, its tensors may be written to."""
        return decode(self.header, Received(self.buffers))


_decode_head = msgspec.msgpack.Decoder(_Head).decode


def after(records: Iterable[LogRecord], step: int) -> list[LogRecord]:
    """Those that were made up to `step` and are needed after it."""
    return [
        record
        for record in records
        if record.kind in (CHUNK, END, TAKEN) and record.step <= step < record.step + record.hold
    ]


def write(out: Callable[[Buffer], Any], records: Iterable[LogRecord], directory: Path) -> None:
    """Give `out` the bytes of a file of `records`; `directory` has the slots of the large ones.

    Raises `TransportError` if a slot is gone.
    """
    at = 0

    def put(data: Buffer) -> None:
        nonlocal at
        out(data)
        at += len(data)

    put(_MAGIC)
    payloads: dict[int, int] = {}
    for record in records:
        header, buffers, number, is_new = b"", list[Buffer](), -1, False
        if record.kind == CHUNK:
            header, buffers = record.load(directory)
            is_new = record.payload not in payloads
            number = payloads.setdefault(record.payload, len(payloads))
        if record.kind == TAKEN:
            header = record.body
        sizes = tuple(map(len, buffers))
        head = msgspec.msgpack.encode(
            _Head(
                record.edge,
                record.step,
                record.chunk,
                record.last,
                record.kind != CHUNK,
                record.consumers,
                number,
                header,
                sizes,
            )
        )
        start = at + _FRAME.size + len(head)
        places, stop = _places(start, sizes if is_new else ())
        put(_FRAME.pack(len(head), stop - start))
        put(head)
        for place, buffer in zip(places, buffers, strict=False):
            put(bytes(place - at))
            put(buffer)


def read(path: Path) -> list[InFlight]:
    """The records of a file. Raises `SnapshotError`."""
    try:
        data = memoryview(map_file(path)).toreadonly()
    except (OSError, ValueError) as error:
        raise SnapshotError(f"the send log cannot be read: {error}", where=str(path)) from error
    found = []
    payloads: dict[int, tuple[Buffer, ...]] = {}
    try:
        if data[: len(_MAGIC)] != _MAGIC:
            raise ValueError("it begins otherwise")
        at = len(_MAGIC)
        while at < len(data):
            length, more = _FRAME.unpack_from(data, at)
            at += _FRAME.size
            head = _decode_head(data[at : at + length])
            at += length
            if head.payload >= 0 and head.payload not in payloads:
                places, stop = _places(at, head.sizes)
                if stop - at != more:
                    raise ValueError(f"{more} bytes of buffers of {head.sizes}")
                payloads[head.payload] = tuple(
                    data[place : place + size] for place, size in zip(places, head.sizes, strict=True)
                )
            at += more
            if at > len(data):
                raise ValueError("it ends within a record")
            buffers = payloads[head.payload] if head.payload >= 0 else ()
            found.append(
                InFlight(head.edge, head.step, head.chunk, head.last, head.end, head.consumers, head.header, buffers)
            )
    except (struct.error, msgspec.MsgspecError, LookupError, ValueError) as error:
        raise SnapshotError(
            f"this is not a send log, or it is damaged: {error}",
            where=str(path),
            remedy="'rolemesh checkpoint verify' tells which snapshots are intact",
        ) from error
    return found


def _places(start: int, sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where in the file buffers begin that follow at `start`, each aligned, and where the last one ends."""
    places = []
    for size in sizes:
        start += -start % _ALIGNMENT
        places.append(start)
        start += size
    return places, start
