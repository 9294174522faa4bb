"""The messages between the parts of an extension, and their form on the way: the core cannot read them.

Messages are delivered in two ways:

- latest: a message states what holds now, and replaces the one of its class. So a lost, late or repeated one does no
  harm. The parts in a rank and in the master send each other such messages. Reports of an agent carry its part's.
- once: a message is an order or an answer. The core sends it once, and it may be lost. The parts in the master and in
  an agent send each other `ToPart` and `FromPart`.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

__all__ = ["ExtensionMessage", "FromPart", "Sealed", "ToPart", "tag_of"]

M = TypeVar("M")


def tag_of(kind: type) -> str:
    """Return the tag of a type of message; "" for a type that is none, because it has no tag."""
    settings = getattr(kind, "__struct_config__", None)
    return str(settings.tag) if settings is not None and settings.tag else ""


class Sealed(msgspec.Struct, frozen=True, array_like=True):
    """An extension's message as the core passes it on: its tag, and its encoded fields."""

    name: str
    body: bytes

    @classmethod
    def of(cls, message: msgspec.Struct) -> Sealed:
        """Seal a struct that has a tag."""
        return cls(tag_of(type(message)), msgspec.msgpack.encode(message))

    def opened(self, kind: type[M]) -> M:
        """Return the message, which is of class `kind`."""
        return msgspec.msgpack.decode(self.body, type=kind)


class ExtensionMessage(msgspec.Struct, frozen=True):
    """Base of the messages between an extension's parts in a rank and in the master.

    A class has a tag that no other message of the job's extensions has:
    ``class Peak(ExtensionMessage, frozen=True, tag="resident/peak")``
    """

    @classmethod
    def name(cls) -> str:
        """Return the tag. Raises `TypeError` if the class has none."""
        if not (tag := tag_of(cls)):
            raise TypeError(f"{cls.__name__} has no tag; write class {cls.__name__}(ExtensionMessage, tag='…')")
        return tag

    def sealed(self) -> Sealed:
        """Return the form in which the core passes the message on.

        Raises `msgspec.ValidationError` if a field has another type than the class says.
        """
        self.name()
        sealed = Sealed.of(self)
        sealed.opened(type(self))
        return sealed


class ToPart(msgspec.Struct, frozen=True, tag=True):
    """From an extension's part in the master to its part in an agent. A part may get it late, twice or never."""

    epoch: int
    message: Sealed

    @classmethod
    def of(cls, epoch: int, message: msgspec.Struct) -> ToPart:
        """Seal a message of the master of this epoch."""
        return cls(epoch, Sealed.of(message))


class FromPart(msgspec.Struct, frozen=True, tag=True):
    """From an extension's part in an agent to its part in the master, which may get it late, twice or never."""

    message: Sealed
