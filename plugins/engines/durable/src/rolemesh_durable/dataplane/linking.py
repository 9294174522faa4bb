"""Large values put into slots: what a rank hands on as it got it is not copied again.

The file in which it lies gets a second name, of the rank that hands it on. So each rank has all that it has sent in
files of its own names, whatever becomes of who wrote them; and nobody writes to a file that has another name
(`SlotPool.acquire`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rolemesh_durable.dataplane.codec import Buffer
from rolemesh_durable.dataplane.places import Run, place_of
from rolemesh_durable.dataplane.shm import Slot, SlotPool, aligned_size
from rolemesh_durable.dataplane.slot_reader import Found, SlotReader

__all__ = ["put_in_slots"]

LINKED: Final = 128 * 1024
"""From so many bytes on, linking a file and unlinking it costs less than a copy."""
_LOOKED_UP: Final = 4096
_LONGEST: Final = 1 << 15
"""A place with more characters than this is not worth it: the log has room for twice as many."""


def put_in_slots(buffers: Sequence[Buffer], pool: SlotPool, reader: SlotReader | None) -> tuple[str, list[Slot]]:
    """Where the buffers lie from now on, and in which slots of `pool`: links to files that `reader` has handed out,
    where they are unchanged, and a slot with copies of the others. Raises `NoSharedMemory`."""
    found = _unchanged(buffers, reader) if reader is not None else {}
    links: dict[str, Slot] = {}
    try:
        for each in found.values():
            if each.slot not in links and (slot := pool.link(each.slot, each.inode, each.mapped)) is not None:
                links[each.slot] = slot
        found = {index: each for index, each in found.items() if each.slot in links}
        copied = [buffer for index, buffer in enumerate(buffers) if index not in found]
        own = None
        if not found or any(map(len, copied)):
            own = pool.acquire(aligned_size([len(buffer) for buffer in copied]))
            own.write(copied)
    except BaseException:
        for slot in links.values():
            pool.release(slot)
        raise
    slots = [*links.values(), own] if own is not None else [*links.values()]
    if own is not None and not links:
        return own.name, slots
    place = place_of(
        _runs(buffers, {index: (links[each.slot].name, each.offset) for index, each in found.items()}, own)
    )
    if len(place) > _LONGEST:
        for slot in slots:
            pool.release(slot)
        return put_in_slots(buffers, pool, None)
    return place, slots


def _unchanged(buffers: Sequence[Buffer], reader: SlotReader) -> dict[int, Found]:
    """By index, those that lie in slots as they came; of a slot of which at least half is among them, since it stays as
    a whole."""
    found: dict[int, Found] = {}
    nbytes: dict[str, int] = {}
    for index, buffer in enumerate(buffers):
        each = reader.find(buffer) if len(buffer) > _LOOKED_UP and type(buffer) is memoryview else None
        if each is not None:
            found[index] = each
            nbytes[each.slot] = nbytes.get(each.slot, 0) + len(buffer)
    return {i: each for i, each in found.items() if max(LINKED, len(each.mapped) / 2) <= nbytes[each.slot]}


def _runs(buffers: Sequence[Buffer], linked: dict[int, tuple[str, int]], own: Slot | None) -> list[Run]:
    """Where each buffer lies, those together that follow each other."""
    runs: list[Run] = []
    end = at = 0
    """The end of the last run, and of what lies in `own` up to here."""
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
