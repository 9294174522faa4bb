"""A chunk as a rank received it."""

from __future__ import annotations

from collections.abc import Sequence

from rolemesh_dataplane.codec import Buffer, decode
from rolemesh_dataplane.slot_reader import SlotReader

__all__ = ["Arrived"]


class Arrived:
    """A chunk as a rank received it, not decoded yet."""

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
        """The header as the sender made it."""
        return self._header

    def buffers(self) -> Sequence[Buffer]:
        """The buffers behind the header."""
        return self._reader.read(self._place, self._sizes) if self._buffers is None else self._buffers

    def value(self) -> object:
        """Return the value, its arrays as views."""
        return decode(self._header, self.buffers())
