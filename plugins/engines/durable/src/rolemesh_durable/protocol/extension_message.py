"""The messages between an extension's part in a rank and its part in the master, and their form on the way.

A message states what holds now. The newest message of a class replaces the one before, so a lost, late or repeated
message does no harm. The agent passes the messages on: those of ranks in each report, those of the master to its ranks.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from rolemesh_durable.protocol.part_messages import packed, tag_of, unpacked

__all__ = ["ExtensionMessage", "Sealed"]

M = TypeVar("M", bound="ExtensionMessage")


class Sealed(msgspec.Struct, frozen=True, array_like=True):
    """An extension's message as the core passes it on: its name, and its encoded fields."""

    name: str
    body: bytes

    def opened(self, kind: type[M]) -> M:
        """Return the message, which is of class `kind`."""
        return unpacked(kind, self.body)


class ExtensionMessage(msgspec.Struct, frozen=True):
    """Base of the messages of extensions. A class has a tag that no other message of the job's extensions has.

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
        sealed = Sealed(self.name(), packed(self))
        sealed.opened(type(self))
        return sealed
