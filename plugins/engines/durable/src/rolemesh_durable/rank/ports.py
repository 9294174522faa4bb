"""Where an endpoint hands on what comes: the ends of edges, and the group's gather port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rolemesh_durable.dataplane.codec import Buffer, decode
from rolemesh_durable.dataplane.slot_reader import SlotReader

__all__ = ["Arrived", "Consumer", "GatherPort", "Producer", "SharePort"]


class Arrived:
    """A chunk as it came, not decoded yet."""

    __slots__ = ("_buffers", "_header", "_place", "_reader", "_sizes", "small")

    def __init__(
        self,
        header: Buffer,
        buffers: Sequence[Buffer] | None,
        reader: SlotReader,
        place: str = "",
        sizes: Sequence[int] = (),
        *,
        small: bool = False,
    ) -> None:
        self.small = small
        self._header = header
        self._buffers = buffers
        self._reader = reader
        self._place = place
        self._sizes = sizes

    @property
    def header(self) -> Buffer:
        """As the sender has made it."""
        return self._header

    def buffers(self) -> Sequence[Buffer]:
        """What lies behind the header."""
        return self._reader.read(self._place, self._sizes) if self._buffers is None else self._buffers

    def value(self) -> object:
        """The value, its arrays as views."""
        buffers = self._buffers
        return decode(self._header, self._reader.read(self._place, self._sizes) if buffers is None else buffers)


class Consumer(Protocol):
    """The consumer's end of an edge."""

    def arrived(self, source: int, generation: int, step: int, chunk: int, last: bool, item: Arrived | None) -> None:
        """A chunk has come."""

    def flush(self) -> None:
        """Tell the producers what has been released."""


class Producer(Protocol):
    """The producer's end of an edge."""

    def acked(self, consumer: int, generation: int, step: int) -> None:
        """A consumer has released everything up to `step`."""

    def asked(self, consumer: int, generation: int, from_step: int, released: int) -> None:
        """A consumer lacks everything from `from_step` on, and has released all up to `released`."""


class SharePort(Protocol):
    """Who takes what the mates say with whom a rank shares the rows of an edge out."""

    def message(self, kind: int, mate: int, generation: int, step: int, item: int) -> None:
        """`mate` sends a message of `kind` about `item` of `step`."""


class GatherPort(Protocol):
    """Who takes what the ranks of the collective group say at its barrier."""

    def message(self, rank: int, generation: int, kind: int, position: int, vote: int) -> None:
        """`rank` sends a message of `kind` about the call at `position`, maybe with a `vote`."""
