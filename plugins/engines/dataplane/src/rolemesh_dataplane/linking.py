"""Put large values into slots, without copying data that a rank forwards as it received it, or that it lends.

The file of such data gets a second name, of the forwarding rank. So each rank has everything that it sent in files with
names of its own, whatever happens to the rank that wrote them. Nobody writes to a file that has another name
(`SlotPool.acquire`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rolemesh_dataplane.codec import Buffer
from rolemesh_dataplane.lending import Lender
from rolemesh_dataplane.places import Run, place_of
from rolemesh_dataplane.shm import SlotPool, ValueSlot, aligned_size
from rolemesh_dataplane.slot_reader import Found, SlotReader

__all__ = ["put_in_slots"]

LINKED: Final = 128 * 1024
"""Minimum bytes for which linking and unlinking a file costs less than a copy."""
_LOOKED_UP: Final = 4096
_LONGEST: Final = 1 << 15
"""Maximum characters of a useful place. The log has room for twice as many."""


def put_in_slots(
    buffers: Sequence[Buffer], pool: SlotPool, reader: SlotReader | None, lender: Lender | None = None
) -> tuple[str, list[ValueSlot]]:
    """Return the new place of the buffers, and their slots in `pool`: links to files that `reader` has handed out, if
    they are unchanged, the slots that `lender` has them in, and a slot with copies of the others.

    Raises `NoSharedMemory`."""
    links: dict[str, ValueSlot] = {}
    there: dict[int, tuple[str, int]] = {}
    """Buffers that lie in a file of this rank already, by index: the file, and where."""
    try:
        for index, each in _unchanged(buffers, reader).items() if reader is not None else ():
            if each.slot not in links and (slot := pool.link(each.slot, each.inode, each.mapped)) is not None:
                links[each.slot] = slot
            if each.slot in links:
                there[index] = links[each.slot].name, each.offset
        if lender is not None:
            there |= _lent(buffers, lender, links)
        copied = [buffer for index, buffer in enumerate(buffers) if index not in there]
        own = None
        if not there or any(map(len, copied)):
            own = pool.acquire(aligned_size([len(buffer) for buffer in copied]))
            own.write(copied)
    except BaseException:
        for slot in links.values():
            pool.release(slot)
        raise
    slots = [*links.values(), own] if own is not None else [*links.values()]
    if own is not None and not links:
        return own.name, slots
    place = place_of(_runs(buffers, there, own))
    if len(place) > _LONGEST:
        for slot in slots:
            pool.release(slot)
        return put_in_slots(buffers, pool, None)
    return place, slots


def _lent(buffers: Sequence[Buffer], lender: Lender, links: dict[str, ValueSlot]) -> dict[int, tuple[str, int]]:
    """Return, by index, the file and offset of buffers that `lender` has. Add the files to `links`."""
    found: dict[int, tuple[str, int]] = {}
    for index, buffer in _large(buffers):
        if (each := lender.find(buffer)) is None:
            continue
        (region, offset), name = each, each[0].slot.name
        if name not in links and (slot := lender.show(region)) is not None:
            links[name] = slot
        if name in links:
            found[index] = name, offset
    return found


def _large(buffers: Sequence[Buffer]) -> Iterator[tuple[int, Buffer]]:
    """Yield the views that are large enough to look for the file that has them, with their indexes."""
    yield from ((i, each) for i, each in enumerate(buffers) if len(each) > _LOOKED_UP and type(each) is memoryview)


def _unchanged(buffers: Sequence[Buffer], reader: SlotReader) -> dict[int, Found]:
    """Return, by index, the buffers that lie unchanged in slots of which they make at least half, because a slot stays
    as a whole."""
    found: dict[int, Found] = {}
    nbytes: dict[str, int] = {}
    for index, buffer in _large(buffers):
        if (each := reader.find(buffer)) is not None:
            found[index] = each
            nbytes[each.slot] = nbytes.get(each.slot, 0) + len(buffer)
    return {i: each for i, each in found.items() if max(LINKED, len(each.mapped) / 2) <= nbytes[each.slot]}


def _runs(buffers: Sequence[Buffer], linked: dict[int, tuple[str, int]], own: ValueSlot | None) -> list[Run]:
    """Return the runs of buffers that follow each other."""
    runs: list[Run] = []
    end = at = 0
    """The end of the last run, and the used bytes of `own`."""
    for index, buffer in enumerate(buffers):
        size = aligned_size([len(buffer)])
        if index in linked:
            slot, offset = linked[index]
        elif own is not None:
            slot, offset = own.name, at
            at += size
        else:  # it has no bytes
            slot, offset = runs[-1].slot if runs else next(iter(linked.values()))[0], end
        if runs and runs[-1].slot == slot and end == offset:
            runs[-1] = runs[-1]._replace(buffers=runs[-1].buffers + 1)
        else:
            runs.append(Run(slot, offset, 1))
        end = offset + size
    return runs
