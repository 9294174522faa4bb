"""The encoding of a call and its answer: a header with their fields, followed by the encoded values."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated, Final, TypeAlias

import msgspec

from rolemesh_dataplane.codec import Buffer, flat_buffers, flatten, unflatten
from rolemesh_dataplane.payload import DATA, HEAD, INLINE
from rolemesh_runtime.served import Report

__all__ = [
    "ANSWER",
    "BREACH",
    "ERROR",
    "GIVE_UP",
    "KEY_BYTES",
    "LATE",
    "LOST",
    "UNCERTAIN",
    "Answer",
    "Request",
    "frame_of",
    "kept_answer",
    "key_of",
    "opened",
    "read_answer",
    "read_request",
]

ANSWER, ERROR, LOST, UNCERTAIN, LATE, BREACH = range(6)
"""Kinds of answers: the result, the error, the loss of the session, a call that may have run, no answer in time, a
breach of contract."""
GIVE_UP: Final = ""
"""The method of a message that gives up the call with its key."""

KEY_BYTES: Final = 16
"""Bytes of the key of a call."""
Key: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]


class Request(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The fields of a call: see `rolemesh_durable.extensions.calls.states`.

    `arguments` is their header; `session` is "" for none.
    """

    key: Key
    method: str
    until: int
    life: int
    arguments: bytes
    session: str = ""


class Answer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The fields of an answer. `value` is its header; `reports` are what the service has reported."""

    key: Key
    kind: Annotated[int, msgspec.Meta(ge=ANSWER, le=BREACH)]
    value: bytes
    reports: Sequence[Report] = ()


_pack = msgspec.msgpack.Encoder().encode
read_request = msgspec.msgpack.Decoder(Request).decode
read_answer = msgspec.msgpack.Decoder(Answer).decode


def frame_of(
    words: Request | Answer, buffers: Sequence[Buffer], edge: int, rank: int, generation: int, step: int
) -> bytes:
    """Return the complete frame for sending."""
    header, sizes = _pack(words), [len(buffer) for buffer in buffers]
    head = HEAD.pack(DATA, INLINE, 1, edge, rank, generation, step, 0, len(header), len(sizes))
    return flatten(header, sizes, buffers, head)


def key_of(op: int, step: int, line: str, role: str, method: str, header: bytes, buffers: Sequence[Buffer]) -> bytes:
    """Return the key of a call, which is the same for the same call in each life of its caller."""
    digest = blake2b(repr((op, step, line, role, method)).encode(), digest_size=KEY_BYTES)
    digest.update(header)
    for buffer in buffers:
        digest.update(buffer)
    return digest.digest()


def opened(frame: bytes) -> tuple[int, int, Buffer, list[Buffer]]:
    """Return the edge and the step of a frame, the header of its fields, and its buffers.

    Raises `TransportError`, and errors of `rolemesh_durable.malformed.UNREADABLE`.
    """
    _, _, _, edge, _, _, step, _, hlen, count = HEAD.unpack_from(frame)
    header, sizes, rest = unflatten(frame, HEAD.size, hlen, count)
    return edge, step, header, flat_buffers(frame, rest, sizes)


def kept_answer(frame: bytes) -> tuple[Answer, list[Buffer]]:
    """Return an answer from its kept frame."""
    _, _, header, buffers = opened(frame)
    return read_answer(header), buffers
