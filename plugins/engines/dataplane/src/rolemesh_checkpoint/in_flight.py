"""The records in flight when a rank persisted a snapshot, in a file beside its state: sent, and still needed.

A record is a chunk of a value, the mark that no chunk follows, or a decision. The file has a payload once, even if it
went to several edges. Values keep their encoding, by `rolemesh_dataplane.codec`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rolemesh_checkpoint.layout import SnapshotError
from rolemesh_checkpoint.log_kinds import RecordKind
from rolemesh_checkpoint.log_record import LogRecord
from rolemesh_checkpoint.reading import map_file
from rolemesh_dataplane.codec import Buffer, Received, decode

__all__ = ["InFlight", "after", "read", "write"]

_MAGIC = b"rmedges1"
_FRAME = struct.Struct("<QQ")
"""The fields are: bytes of the head, bytes of the buffers with their alignment."""
_ALIGNMENT = 64


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """The head of a record in a file.

    `payload`: Number of the payload within the file; -1: none. The first record with a number has the bytes.
    `end`: The record is no chunk.
    `scope`: Decision: its scope, or "".
    `hold`: Decision: a restart may need it until step ``step + hold`` is committed.
    `body`: Decision: its content. Without a scope: the line of metrics that the rank had begun.
    """

    edge: int
    step: int
    chunk: int
    last: bool
    end: bool
    consumers: tuple[int, ...]
    payload: int
    header: bytes
    sizes: tuple[int, ...]
    scope: str = ""
    hold: int = 0
    body: bytes = b""


class InFlight(msgspec.Struct, frozen=True):
    """One record of what was in flight.

    `kind`: A chunk, the mark that no chunk follows, a decision of the rank, or the line of metrics that it had begun.
    `step`: The step that it belongs to.
    `edge`: Chunk and end: the edge.
    `chunk`: Chunk and end: its number within the step.
    `last`: Chunk and end: no chunk of the step follows.
    `consumers`: Chunk and end: the ranks at the end of the edge that it is for.
    `header`: Chunk: the encoded beginning.
    `buffers`: Chunk: its buffers.
    `scope`: Decision: what it is about.
    `hold`: Decision: a restart may need it until step ``step + hold`` is committed.
    `body`: Decision: its content. Without a scope: the line of metrics that the rank had begun.
    """

    kind: RecordKind
    step: int
    edge: int = -1
    chunk: int = 0
    last: bool = False
    consumers: tuple[int, ...] = ()
    header: bytes = b""
    buffers: tuple[Buffer, ...] = ()
    scope: str = ""
    hold: int = 0
    body: bytes = b""

    def value(self) -> Any:
        """Return the chunk's value. Its arrays are views of the file; its tensors may be written to."""
        return decode(self.header, Received(self.buffers))


_decode_head = msgspec.msgpack.Decoder(_Head).decode


def after(records: Iterable[LogRecord], step: int) -> list[LogRecord]:
    """Return the records up to `step` that a restart after `step` needs, and that persisted snapshots have."""
    sent = RecordKind.CHUNK, RecordKind.END, RecordKind.PARTIAL
    return [
        record
        for record in records
        if (record.kind in sent or record.persists) and record.step <= step < record.step + record.hold
    ]


def write(out: Callable[[Buffer], Any], records: Iterable[LogRecord], directory: Path) -> None:
    """Pass the bytes of a file of `records` to `out`; `directory` has the slots of the large ones.

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
        if record.kind == RecordKind.CHUNK:
            header, buffers = record.load(directory)
            is_new = record.payload not in payloads
            number = payloads.setdefault(record.payload, len(payloads))
        sizes = tuple(map(len, buffers))
        head = msgspec.msgpack.encode(
            _Head(
                record.edge,
                record.step,
                record.chunk,
                record.last,
                record.kind != RecordKind.CHUNK,
                record.consumers,
                number,
                header,
                sizes,
                record.scope,
                record.hold if record.scope else 0,
                record.body if record.scope or record.kind == RecordKind.PARTIAL else b"",
            )
        )
        start = at + _FRAME.size + len(head)
        places, stop = _places(start, sizes if is_new else ())
        put(_FRAME.pack(len(head), stop - start))
        put(head)
        for place, buffer in zip(places, buffers, strict=False):
            put(bytes(place - at))
            put(buffer)


def read(folder: Path, *names: str) -> list[InFlight]:
    """Return the records of a file: a path, or a folder and names as for `map_file`. Raises `SnapshotError`."""
    path = Path(folder, *names)
    folder, names = (folder, names) if names else (path.absolute().parent, (path.name,))
    try:
        data = memoryview(map_file(folder, *names)).toreadonly()
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
            found.append(_record(head, buffers))
    except (struct.error, msgspec.MsgspecError, LookupError, ValueError) as error:
        raise SnapshotError(
            f"this is not a send log, or it is damaged: {error}",
            where=str(path),
            remedy="'rolemesh checkpoint verify' tells which snapshots are intact",
        ) from error
    return found


def _record(head: _Head, buffers: tuple[Buffer, ...]) -> InFlight:
    if head.scope:
        return InFlight(RecordKind.DECISION, head.step, scope=head.scope, hold=head.hold, body=head.body)
    if head.body:
        return InFlight(RecordKind.PARTIAL, head.step, body=head.body)
    kind = RecordKind.END if head.end else RecordKind.CHUNK
    return InFlight(kind, head.step, head.edge, head.chunk, head.last, head.consumers, head.header, buffers)


def _places(start: int, sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return the positions of buffers from `start` on in the file, each aligned, and the end of the last one."""
    places = []
    for size in sizes:
        start += -start % _ALIGNMENT
        places.append(start)
        start += size
    return places, start
