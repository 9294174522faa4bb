"""The memory that a restarted rank's process takes over from its former generations: slots, and lines of metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh_checkpoint import in_flight
from rolemesh_checkpoint.log_kinds import RecordKind
from rolemesh_checkpoint.log_record import LogRecord
from rolemesh_dataplane.codec import flatten
from rolemesh_dataplane.payload import Payload
from rolemesh_dataplane.shm import SlotPool, aligned_size, named
from rolemesh_durable.rank.values import INLINE_BYTES
from rolemesh_runtime.metrics import Metrics

__all__ = ["Inherited", "ProcessFormerMemory", "stored_line"]

_decode_line = msgspec.msgpack.Decoder(Metrics).decode


def stored_line(records: Iterable[in_flight.InFlight]) -> Metrics | None:
    """Return the line that a rank had begun when it persisted a snapshot with these `records`; None if none."""
    return next((_decode_line(record.body) for record in records if record.kind == RecordKind.PARTIAL), None)


class Inherited:
    """The memory of former generations.

    An orphan is a chunk that one of them sent after the step that its successor was restored to. The successor makes it
    again. A consumer that has received the orphan does not look at the value again. So the orphan's slot stays until no
    consumer can need it.
    """

    def __init__(self, directory: Path) -> None:
        self.lines: list[Metrics] = []
        """Lines of metrics that the agent may lack."""
        self.partial: Metrics | None = None
        """The line that the rank had begun when it took the snapshot."""
        self.nbytes = 0
        """Bytes of the orphans' slots."""
        self._directory = directory
        self._slots: dict[str, tuple[int, int]] = {}

    def continues(self, begun: Metrics) -> None:
        """Take the line that a former generation had begun."""
        self.partial = begun

    def retain(self, slot: str, until: int) -> None:
        """Keep `slot` until step `until` is committed."""
        known = self._slots.get(slot)
        if known is None:
            try:
                size = (self._directory / slot).stat().st_size
            except FileNotFoundError:
                return
            self.nbytes += size
            known = until, size
        self._slots[slot] = max(until, known[0]), known[1]

    def awaits_commit(self, step: int) -> bool:
        """Return True if the commit of `step` would remove some of them."""
        return any(until <= step for until, _ in self._slots.values())

    @property
    def slots(self) -> frozenset[str]:
        """The slots of orphans."""
        return frozenset(self._slots)

    def committed(self, step: int) -> None:
        """Remove the slots of orphans that no consumer can need after the commit of `step`."""
        for slot in [slot for slot, (until, _) in self._slots.items() if until <= step]:
            self.nbytes -= self._slots.pop(slot)[1]
            (self._directory / slot).unlink(missing_ok=True)


class ProcessFormerMemory:
    """`rolemesh_durable.protocol.rank.former_log.FormerMemory` of a process. It collects what it retains in `found`."""

    def __init__(self, ref: RankRef, pool: SlotPool, records: Sequence[LogRecord], found: Inherited) -> None:
        """`records` are all records of the log of the rank `ref`."""
        self._ref, self._pool, self._found = ref, pool, found
        self._lies_in = {slot: record.payload for record in records for slot in record.slots}
        """The payload in each slot: the last one that was written to it."""
        self._payloads: dict[int, Payload] = {}

    def item(self, record: LogRecord) -> Payload | None:
        """Return the payload of a chunk; None if the slot has another payload now, or is gone."""
        known = self._payloads.get(record.payload)
        if known is None and (known := _payload(record, self._pool, self._lies_in)) is not None:
            self._payloads[record.payload] = known
        return known

    def retain(self, record: LogRecord) -> None:
        """Keep the slots of an orphan."""
        for slot in record.slots:
            if self._lies_in[slot] == record.payload:
                self._found.retain(slot, record.step + record.hold)

    def line(self, record: LogRecord) -> None:
        """Collect lines of metrics."""
        self._found.lines.append(_decode_line(record.body))

    def partial(self, record: LogRecord) -> None:
        """Collect the line that the rank had begun."""
        self._found.continues(_decode_line(record.body))

    def stored(self, record: in_flight.InFlight) -> Payload:
        """Copy a chunk of a persisted snapshot into a slot, or into this process if it is small."""
        return _stored(record, self._pool)

    def free_rest(self) -> None:
        """Remove the slots of this rank's former generations that no consumer can request."""
        kept = {slot.name for payload in self._payloads.values() for slot in payload.slots} | self._found.slots
        for path in named(self._pool.directory, f"slot-{self._ref.role}-{self._ref.rank}-"):
            if path.name not in kept:
                path.unlink(missing_ok=True)


def _payload(record: LogRecord, pool: SlotPool, lies_in: dict[str, int]) -> Payload | None:
    """Return the payload of a chunk; None if it was freed, so that its slot has another payload or is gone."""
    if any(lies_in[slot] != record.payload for slot in record.slots):
        return None
    slots = [slot for name in record.slots if (slot := pool.adopt(name)) is not None]
    if len(slots) < len(record.slots):
        for slot in slots:
            pool.release(slot)
        return None
    return Payload.logged(record.body, record.hlen, record.sizes, record.place, slots, pool, record.payload)


def _stored(record: in_flight.InFlight, pool: SlotPool) -> Payload:
    header, buffers = record.header, record.buffers
    sizes = [len(buffer) for buffer in buffers]
    if sum(sizes) <= INLINE_BYTES:
        return Payload.logged(flatten(header, sizes, buffers), len(header), sizes, "", [], pool, -1)
    slot = pool.acquire(aligned_size(sizes))
    slot.write(buffers)
    return Payload.logged(flatten(header, sizes, ()), len(header), sizes, slot.name, [slot], pool, -1)
