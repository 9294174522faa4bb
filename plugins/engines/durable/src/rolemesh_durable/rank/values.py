"""The conversion of a rank's values to payloads, in frames or in slots of shared memory, and back."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any

from rolemesh.graph.logical import Edge
from rolemesh.graph.routes import Collate, Combine, Concat, Selection, Take, Whole
from rolemesh_dataplane.lending import Lender
from rolemesh_dataplane.payload import Payload
from rolemesh_dataplane.shm import SlotPool
from rolemesh_dataplane.slot_reader import SlotReader
from rolemesh_durable.protocol.rank.effects import Reader
from rolemesh_runtime import items
from rolemesh_runtime.values import combine, gather, join_chunks, select

__all__ = ["INLINE_BYTES", "PayloadValues", "SlotMemory"]

INLINE_BYTES = 32 * 1024
"""Values up to this size travel in their frame; larger ones in a shared-memory slot (or in frames of their own)."""


class PayloadValues:
    """`rolemesh_durable.protocol.rank.effects.Values` of a process."""

    def __init__(self, pool: SlotPool, reader: SlotReader, lender: Lender) -> None:
        self._pool, self._reader, self._lender = pool, reader, lender

    def encode(self, value: Any, selection: Selection) -> Payload:
        """Return the part of `value` that `selection` names, in memory that no other code writes to before the rank's
        next operator."""
        part = value if type(selection) is Whole else select(value, selection)
        return Payload(part, self._pool, INLINE_BYTES, self._reader, self._lender)

    def join(self, chunks: Sequence[Any]) -> Any:
        """Return the value that was yielded in chunks."""
        return join_chunks(chunks)

    def combine(self, parts: Sequence[Any], how: Combine) -> Any:
        """Return the value of parts that only make sense together."""
        return combine(parts, how)

    def rows(self, parts: Sequence[Any]) -> Any:
        """Return the rows of several items as one value."""
        return items.joined(parts)

    def reader(self, edge: Edge, sources: Sequence[int], how: Combine) -> Reader:
        """Return the function that builds values from the chunks of an edge."""
        if isinstance(how, Collate):
            return lambda made, chunks: items.assembled(chunk.value() for part in chunks for chunk in part)
        single = len(sources) == 1 and isinstance(how, (Take, Concat))

        def read(made: int, chunks: list[list[Any]]) -> Any:
            if single and len(chunks[0]) == 1:
                return chunks[0][0].value()
            return gather([[chunk.value() for chunk in part] for part in chunks], how)

        return read


class SlotMemory:
    """`rolemesh_durable.protocol.rank.effects.Memory` of a process."""

    def __init__(self, pool: SlotPool, reader: SlotReader, lender: Lender) -> None:
        self._pool, self._reader, self._lender = pool, reader, lender

    @property
    def used_bytes(self) -> int:
        """Bytes of the slots that consumers may need."""
        return self._pool.used_bytes - self._lender.own_bytes

    def within(self, kept: int, most: int) -> None:
        """Unlink free slots beyond `most`. The rank keeps `kept` bytes in all."""
        over = kept + self._pool.free_bytes - most
        if over > 0:
            self._pool.give_back(over)

    def trim(self, step: int) -> None:
        """Give back memory that was not used for long."""
        now = monotonic()
        self._pool.trim(step, now)
        self._reader.trim(step, now)

    def forget_lost(self) -> None:
        """Forget the free slots whose files another process has removed."""
        self._pool.forget_lost()
