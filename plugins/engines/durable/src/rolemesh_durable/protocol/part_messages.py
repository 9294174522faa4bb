"""The messages between an extension's parts in the master and in the agents: structs that the core does not know.

The sender packs a struct with a tag, and the receiver unpacks it by this tag. The core passes on the packed form.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

__all__ = ["FromPart", "ToPart", "packed", "tag_of", "unpacked"]

T = TypeVar("T")


class ToPart(msgspec.Struct, frozen=True, tag=True):
    """From an extension's part in the master to its part in an agent. `kind` is the tag of the struct in `data`.

    It may be lost, late or repeated, as each message of the master.
    """

    epoch: int
    kind: str
    data: bytes

    @classmethod
    def of(cls, epoch: int, message: msgspec.Struct) -> ToPart:
        """Pack a message of the master of this epoch."""
        return cls(epoch, tag_of(type(message)), packed(message))


class FromPart(msgspec.Struct, frozen=True, tag=True):
    """From an extension's part in an agent to its part in the master. It may be lost, late or repeated."""

    kind: str
    data: bytes

    @classmethod
    def of(cls, message: msgspec.Struct) -> FromPart:
        """Pack a message."""
        return cls(tag_of(type(message)), packed(message))


def tag_of(kind: type) -> str:
    """Return the tag of a type of message; "" for a type that is none, because it has no tag."""
    settings = getattr(kind, "__struct_config__", None)
    return str(settings.tag) if settings is not None and settings.tag else ""


packed = msgspec.msgpack.Encoder().encode


def unpacked(kind: type[T], data: bytes) -> T:
    """Return the message of this type."""
    return msgspec.msgpack.decode(data, type=kind)
