"""One record of a send log, and its encoding.

A record begins with its position, step, hold and kind. The fields of its kind follow, and then its body.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import msgspec

from rolemesh_checkpoint.log_kinds import RecordKind
from rolemesh_dataplane.codec import Buffer, flat_buffers, unflatten
from rolemesh_dataplane.places import slots_of
from rolemesh_dataplane.slot_reader import SlotReader

__all__ = ["HEAD_BYTES", "MAX_HOLD", "LogRecord", "chunk_head", "decision", "end", "head_of", "lines", "parse", "whole"]

_HEAD = struct.Struct("<QqIB")
"""The fields are: position, step, hold, kind."""
_CHUNK = struct.Struct("<QqIBBHIIqIIH")
"""The fields are: head, last, consumers, edge, chunk, payload, header's bytes, buffers, bytes of the place."""
_END = struct.Struct("<QqIBHII")
"""The fields are: the head, number of consumers, edge, chunk."""
_WHOLE = struct.Struct("<QqIBII")
"""The fields are: the head, call, number of records."""
_DECISION = struct.Struct("<QqIBBB")
"""The fields are: the head, whether persisted snapshots have it, bytes of the scope."""
_KINDS: Final = tuple(RecordKind)
_CHUNK_KIND: Final = RecordKind.CHUNK
HEAD_BYTES: Final = _HEAD.size
MAX_HOLD: Final = (1 << 32) - 1
chunk_head: Final = _CHUNK.pack
"""Encodes a chunk up to its consumers, its place and its body. A rank calls it for each chunk that it sends."""


class LogRecord(msgspec.Struct, frozen=True, gc=False):
    """One record. The fields after `body` have a meaning for some kinds only.

    - `kind`: its kind.
    - `position`: number of records before it.
    - `generation`: the generation of the rank that wrote it.
    - `step`: the step that it belongs to.
    - `hold`: a restart may need the record until step ``step + hold`` is committed.
    - `body`: chunk: the result of `codec.flatten`, without the buffers if they are at `place`. Lines: the encoded
      block. Whole: the encoded items of the value, if its rows were made by demand. Decision: its content.
    - `edge`: chunk and end: the edge.
    - `chunk`: chunk and end: its number within the step.
    - `last`: chunk and end: no chunk of the step follows.
    - `consumers`: chunk and end: the ranks that it is for.
    - `payload`: chunk: the position of the first record with the same content.
    - `hlen`: chunk: bytes of its header.
    - `count`: chunk: number of its buffers.
    - `place`: chunk: the slots of its buffers if they are large, or "".
    - `call`: whole: the operator call.
    - `made`: whole: number of records before it that the call made.
    - `scope`: decision: its subject, as ``newest/3``.
    - `persists`: decision: persisted snapshots have it too.
    """

    kind: RecordKind
    position: int
    generation: int
    step: int
    hold: int
    body: bytes = b""
    edge: int = -1
    chunk: int = 0
    last: bool = False
    consumers: tuple[int, ...] = ()
    payload: int = -1
    hlen: int = 0
    count: int = 0
    place: str = ""
    call: int = -1
    made: int = 0
    scope: str = ""
    persists: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each buffer of a chunk."""
        return unflatten(self.body, 0, self.hlen, self.count)[1]

    @property
    def slots(self) -> tuple[str, ...]:
        """The files of a chunk's buffers, if they are large."""
        return slots_of(self.place)

    def load(self, directory: str | Path) -> tuple[bytes, list[Buffer]]:
        """Return header and buffers of a chunk, for `codec.decode`; `directory` has the slot files."""
        header, sizes, rest = unflatten(self.body, 0, self.hlen, self.count)
        if self.place:
            return bytes(header), SlotReader(directory).read(self.place, sizes)
        return bytes(header), flat_buffers(self.body, rest, sizes)


def end(position: int, step: int, hold: int, edge: int, chunk: int, consumers: tuple[int, ...]) -> bytes:
    """Encode the mark that ends a value, up to its `consumers`."""
    return _END.pack(position, step, min(hold, MAX_HOLD), RecordKind.END, len(consumers), edge, chunk)


def lines(position: int, step: int, hold: int, body: bytes, *, partial: bool) -> bytes:
    """Encode lines of metrics, or (`partial`) a part of one."""
    return _HEAD.pack(position, step, hold, RecordKind.PARTIAL if partial else RecordKind.LINE) + body


def whole(position: int, step: int, hold: int, call: int, made: int, body: bytes) -> bytes:
    """Encode the mark that the log has all that a call made."""
    return _WHOLE.pack(position, step, min(hold, MAX_HOLD), RecordKind.WHOLE, call, made) + body


def decision(position: int, step: int, hold: int, scope: str, body: bytes, *, persists: bool) -> bytes:
    """Encode a decision."""
    name = scope.encode()
    head = _DECISION.pack(position, step, min(hold, MAX_HOLD), RecordKind.DECISION, persists, len(name))
    return b"".join((head, name, body))


def head_of(data: bytes) -> tuple[int, int, int]:
    """Return position, step and hold of an encoded record."""
    return _HEAD.unpack_from(data)[:3]


def parse(data: bytes, generation: int) -> LogRecord:
    """Return the record that `generation` has encoded as `data`. Raises `IndexError` for an unknown kind."""
    position, step, hold, number = _HEAD.unpack_from(data)
    kind = _KINDS[number]
    if kind is _CHUNK_KIND:
        _, _, _, _, last, ranks, edge, chunk, payload, hlen, count, name = _CHUNK.unpack_from(data)
        at = _CHUNK.size + 4 * ranks
        consumers, place, body = _ranks(data, _CHUNK.size, ranks), data[at : at + name].decode(), data[at + name :]
        return LogRecord(
            kind,
            position,
            generation,
            step,
            hold,
            body,
            edge,
            chunk,
            bool(last),
            consumers,
            payload,
            hlen,
            count,
            place,
        )
    base = kind, position, generation, step, hold
    if kind is RecordKind.END:
        *_, ranks, edge, chunk = _END.unpack_from(data)
        consumers, body = _ranks(data, _END.size, ranks), data[_END.size + 4 * ranks :]
        return LogRecord(*base, body, edge, chunk, True, consumers)
    if kind is RecordKind.WHOLE:
        *_, call, made = _WHOLE.unpack_from(data)
        return LogRecord(*base, data[_WHOLE.size :], call=call, made=made)
    if kind is RecordKind.DECISION:
        *_, persists, name = _DECISION.unpack_from(data)
        at = _DECISION.size + name
        return LogRecord(*base, data[at:], scope=data[_DECISION.size : at].decode(), persists=bool(persists))
    return LogRecord(*base, data[_HEAD.size :])


def _ranks(data: bytes, at: int, count: int) -> tuple[int, ...]:
    return struct.unpack_from(f"<{count}I", data, at)
