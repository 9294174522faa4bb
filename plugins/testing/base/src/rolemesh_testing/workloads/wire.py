"""The messages between the kit and its ranks, and packed values."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from rolemesh.api.partition import Balanced
from rolemesh_dataplane.codec import decode, encode, flat_buffers, flatten, unflatten
from rolemesh_testing.raising import Raised
from rolemesh_testing.workloads.listed import Listed

__all__ = [
    "Answer",
    "Ask",
    "Asked",
    "Call",
    "Done",
    "Offload",
    "Onload",
    "Reply",
    "Request",
    "Restore",
    "Returned",
    "SetUp",
    "Shared",
    "Snapshot",
    "Taken",
    "TearDown",
    "TornDown",
    "packed",
    "unpacked",
]


class SetUp(msgspec.Struct, frozen=True, tag=True):
    """Make the workload `target` (``module:name``) and set it up; `options` as in a job file.

    `meeting` is host and port of the group's socket, None for a rank without a group.
    """

    target: str
    options: dict[str, Any]
    rank: int
    world_size: int
    seed: int
    steps: int
    base: str
    tmp_dir: str
    generation: int
    turns: bool
    meeting: tuple[str, int] | None
    plugins: tuple[Listed, ...] = ()


class Shared(msgspec.Struct, frozen=True):
    """A balanced input: its name, and how ranks share its rows."""

    param: str
    how: Balanced


class Call(msgspec.Struct, frozen=True, tag=True):
    """Call an operator. `arguments` are packed values; those in `streamed` are lists of chunks to iterate over.

    With `shared` the rank calls the operator for each of its items.
    """

    step: int
    operator: str
    arguments: dict[str, bytes]
    streamed: tuple[str, ...] = ()
    shared: Shared | None = None


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Call a service with packed `arguments`, a list, in `session` ("" for none)."""

    step: int
    service: str
    arguments: bytes
    session: str = ""


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The packed answer to `Asked`."""

    value: bytes


class Snapshot(msgspec.Struct, frozen=True, tag=True):
    """Return the state."""


class Restore(msgspec.Struct, frozen=True, tag=True):
    """Restore a state."""

    state: bytes


class Offload(msgspec.Struct, frozen=True, tag=True):
    """Release device memory."""


class Onload(msgspec.Struct, frozen=True, tag=True):
    """Take device memory again."""


class TearDown(msgspec.Struct, frozen=True, tag=True):
    """Release everything."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """Done, without a result."""


class Returned(msgspec.Struct, frozen=True, tag=True):
    """The result of an operator: the packed value (None for None), its fingerprint, and the inputs that it changed."""

    value: bytes | None
    fingerprint: str
    written: tuple[str, ...]


class Taken(msgspec.Struct, frozen=True, tag=True):
    """A state: packed, its digest, and the type of each entry. `state` is None if the rank keeps none."""

    state: bytes | None
    digest: str
    entries: dict[str, str]


class Asked(msgspec.Struct, frozen=True, tag=True):
    """An operator calls a service of another role, in `session` ("" for none). The kit sends an `Answer`."""

    role: str
    method: str
    arguments: bytes
    session: str


class TornDown(msgspec.Struct, frozen=True, tag=True):
    """The rank's process still has these threads (no daemons) and child processes."""

    threads: tuple[str, ...]
    children: tuple[str, ...]


Request: TypeAlias = SetUp | Call | Ask | Answer | Snapshot | Restore | Offload | Onload | TearDown
Reply: TypeAlias = Done | Asked | Returned | Taken | TornDown | Raised


def packed(value: Any) -> bytes:
    """Pack a value, encoded as it travels between the ranks of a job."""
    header, buffers = encode(value)
    head = len(header).to_bytes(8, "little") + len(buffers).to_bytes(8, "little")
    return head + flatten(header, [len(buffer) for buffer in buffers], buffers)


def unpacked(data: bytes) -> Any:
    """Return the packed value. Arrays are read-only views of `data`, like inputs in a job."""
    hlen, count = int.from_bytes(data[:8], "little"), int.from_bytes(data[8:16], "little")
    body = memoryview(data)[16:]
    header, sizes, at = unflatten(body, 0, hlen, count)
    return decode(header, flat_buffers(body, at, sizes))
