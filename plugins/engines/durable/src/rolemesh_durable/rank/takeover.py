"""What a restarted rank takes over from its former generations: values that may still be asked for, slots, lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from rolemesh.graph.logical import LogicalGraph
from rolemesh.runs.metrics import Metrics
from rolemesh_durable.checkpoint import disk, in_flight
from rolemesh_durable.checkpoint.send_log import (
    ANSWERED,
    ASKED,
    CHOICE,
    CHUNK,
    LINE,
    NOTE,
    PARTIAL,
    TAKEN,
    WHOLE,
    LogRecord,
)
from rolemesh_durable.checkpoint.trust import read_edges
from rolemesh_durable.dataplane.codec import flatten
from rolemesh_durable.dataplane.shm import SlotPool, aligned_size, named
from rolemesh_durable.dataplane.transport import Payload
from rolemesh_durable.protocol.blocks import Block
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.rank.sent_log import SentLog
from rolemesh_durable.rank.values import INLINE_BYTES

__all__ = ["Inheritance", "carry_over", "take_over"]

_decode_lines = msgspec.msgpack.Decoder(Block).decode
_decode_partial = msgspec.msgpack.Decoder(Metrics).decode


class Inheritance:
    """What is left of former generations.

    An orphan is what one of them sent after the step that its successor was restored to. The successor makes it again;
    but who has got it already does not look at it twice, so an orphan's slot stays until no consumer can need it.
    """

    def __init__(self, directory: Path) -> None:
        self.lines: list[Block] = []
        """Lines of metrics that the agent may lack."""
        self.partial: Metrics | None = None
        """The line that had been begun when the snapshot was taken."""
        self.nbytes = 0
        """What the orphans' slots take."""
        self._directory = directory
        self._slots: dict[str, tuple[int, int]] = {}

    def retain(self, slot: str, until: int) -> None:
        """`slot` stays until step `until` is committed."""
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
        """Whether the commit of `step` would remove some of them."""
        return any(until <= step for until, _ in self._slots.values())

    @property
    def slots(self) -> frozenset[str]:
        """Slots that belong to orphans."""
        return frozenset(self._slots)

    def committed(self, step: int) -> None:
        """`step` is committed: remove the slots of orphans that nobody can need."""
        for slot in [slot for slot, (until, _) in self._slots.items() if until <= step]:
            self.nbytes -= self._slots.pop(slot)[1]
            (self._directory / slot).unlink(missing_ok=True)


def take_over(
    log: SentLog,
    ports: Ports[Payload],
    pool: SlotPool,
    resume: int,
    void: Callable[[LogRecord], bool] = lambda _: False,
    *,
    anew: bool,
) -> Inheritance:
    """Put what `log` has up to step `resume` behind the ports, as if it had been sent here.

    `anew`: the rank was restored from elsewhere, so all that the log has are orphans. So is what is `void`: it was made
    for ranks of an earlier layout. Slot files that nobody can ask
    for are removed. To be called before ``ports.open``.
    """
    ours = [] if anew else log.ours
    records, log.found = log.found, []
    ports.orphans = found = Inheritance(pool.directory)
    # A slot that had been freed was written again: its last payload is the one that lies in it.
    lies_in = {slot: record.payload for record in records for slot in record.slots}
    ways = {way.edge.id: way for way in ports.ways}
    payloads: dict[int, Payload] = {}
    ports.choose_again({(record.edge, record.step): record.chunk for record in ours if record.kind == CHOICE})
    ports.take_again(resume, [record for record in ours if record.kind == TAKEN])
    for record in records:
        orphan = log.is_orphan(record)
        # What a rank sent up to the step on disk it has from there.
        again = record.step > resume and log.is_whole(record)
        if record.kind in (CHOICE, TAKEN, ASKED, ANSWERED, NOTE):
            continue
        if record.kind == WHOLE:
            out = ports.outputs.get(record.edge)
            if not orphan and record.step > resume and out is not None:
                out.whole(record)
            continue
        if record.kind == LINE:
            if not orphan:
                found.lines.append(_decode_lines(record.body))
        elif record.kind == PARTIAL:
            if not orphan and record.step == resume:
                found.partial = _decode_partial(record.body)
        elif orphan or (anew and not again) or void(record):
            for slot in record.slots:
                if lies_in[slot] == record.payload:
                    found.retain(slot, record.step + record.hold)
        else:
            way, payload = ways[record.edge], None
            if record.kind == CHUNK:
                payload = payloads.get(record.payload) or _payload(record, pool, lies_in)
                if payload is None:
                    continue
                payloads[record.payload] = payload
            if again and way.made is not None:
                way.made = max(way.made, record.step)
            if record.step + way.delivery.soonest >= ports.job.steps:
                # Logged for a longer job only: nobody asks for it in this one.
                for slot in record.slots:
                    found.retain(slot, record.step + record.hold)
                continue
            ports.outputs[way.edge.src].take_over(way, payload, record, again=again)
    taken = {slot.name for payload in payloads.values() for slot in payload.slots} | found.slots
    site = ports.mail.site
    for path in named(pool.directory, f"slot-{site.role}-{site.rank}-"):
        if path.name not in taken:
            path.unlink(missing_ok=True)
    return found


def _payload(record: LogRecord, pool: SlotPool, lies_in: dict[str, int]) -> Payload | None:
    """The payload of a chunk; None if it has been freed, so that its slot holds something else or is gone."""
    if any(lies_in[slot] != record.payload for slot in record.slots):
        return None
    slots = [slot for name in record.slots if (slot := pool.adopt(name)) is not None]
    if len(slots) < len(record.slots):
        for slot in slots:
            pool.release(slot)
        return None
    return Payload.logged(record.body, record.hlen, record.sizes, record.place, slots, pool, record.payload)


def carry_over(
    origin: str,
    graph: LogicalGraph,
    world_sizes: Mapping[str, int],
    ports: Ports[Payload],
    pool: SlotPool,
    *,
    trusted: bool = False,
) -> None:
    """Put into the log what the rank had sent when the snapshot in the folder `origin` was persisted.

    Nobody asks for it here, since consumers read it from there themselves; but the next snapshot to be persisted must
    have it too; so a pickled object is refused here as well, unless it is `trusted`. Edges between roles of another
    size now are left out. To be called before ``ports.open``.
    """
    site = ports.mail.site
    manifest = disk.read_manifest(origin)
    before = manifest.world_sizes
    name = disk.edges_file(site.role, site.rank, before.get(site.role, 0))
    if name not in manifest.files:
        return
    same = {role for role, size in world_sizes.items() if before.get(role) == size}
    ways = {way.edge.id: way for way in ports.ways if {site.role, graph.ops[way.edge.dst].role} <= same}
    for record in read_edges(Path(origin), name, f"{site.role}/{site.rank}", graph, trusted=trusted):
        if record.end and record.header and ports.log is not None:
            ports.log.taken(record.edge, record.step, record.header)
        elif (way := ways.get(record.edge)) is not None:
            payload = None if record.end else _stored(record, pool)
            way.put(payload, record.step, record.chunk, record.last, record.consumers)


def _stored(record: in_flight.InFlight, pool: SlotPool) -> Payload:
    header, buffers = record.header, record.buffers
    sizes = [len(buffer) for buffer in buffers]
    if sum(sizes) <= INLINE_BYTES:
        return Payload.logged(flatten(header, sizes, buffers), len(header), sizes, "", [], pool, -1)
    slot = pool.acquire(aligned_size(sizes))
    slot.write(buffers)
    return Payload.logged(flatten(header, sizes, ()), len(header), sizes, slot.name, [slot], pool, -1)
