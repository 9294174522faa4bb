"""The packets of a Perfetto trace: tracks, slices, instants and counters. Pure.

Each track has a packet sequence of its own. There a timestamp is the distance from the previous one in µs, and a name
is a number after its first use. Fields are numbered as in Perfetto's ``protos/perfetto/trace/trace_packet.proto`` and
``track_event/*.proto``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from rolemesh_trace.protobuf import double, fixed64, integer, message, text, varint

__all__ = ["Instant", "Slice", "clock", "counter", "counts", "instants", "process", "slices", "thread", "track"]

BOOT_CLOCK, REAL_CLOCK, OWN_CLOCK = 6, 1, 64
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
_PACKET, _SEQUENCE, _FLAGS, _DESCRIPTOR, _EVENT = 1, 10, 13, 60, 11
_INTERNED, _STEP_NAME = 12, 1


class Slice(NamedTuple):
    """A part of a track from `began` to `ended`, in µs since 1970. `step`: -1 for none.

    `out` and `into` are the numbers of the arrows that leave here and that end here.
    """

    began: int
    ended: int
    name: str
    step: int = -1
    out: tuple[int, ...] = ()
    into: tuple[int, ...] = ()


class Instant(NamedTuple):
    """A point of a track, `at` µs since 1970, with texts by name."""

    at: int
    name: str
    told: Mapping[str, str]


def clock(start: int) -> bytes:
    """Return the packet that relates the times of the trace to the wall clock, at `start` µs since 1970."""
    clocks = (message(1, integer(1, each), integer(2, start * 1000)) for each in (BOOT_CLOCK, REAL_CLOCK))
    return message(_PACKET, integer(_SEQUENCE, 1), message(6, *clocks))


def process(uuid: int, pid: int, name: str) -> bytes:
    """Return the description of a process. `pid` tells it from others; it need not exist."""
    return _described(uuid, message(3, integer(1, pid), text(6, name)))


def thread(uuid: int, pid: int, tid: int, name: str) -> bytes:
    """Return the description of a thread of process `pid`."""
    return _described(uuid, message(4, integer(1, pid), integer(2, tid), text(5, name)))


def track(uuid: int, parent: int, name: str) -> bytes:
    """Return the description of another track of process or thread `parent`."""
    return _described(uuid, integer(5, parent), text(2, name))


def counter(uuid: int, parent: int, name: str, unit: str) -> bytes:
    """Return the description of a counter of process or thread `parent`."""
    return _described(uuid, integer(5, parent), text(2, name), message(8, text(6, unit)))


def slices(uuid: int, start: int, content: Iterable[Slice]) -> bytes:
    """Return the slices of a track. They lie within or behind each other: one that overlaps another is cut off.

    `start` is a time before all of them.
    """
    found, last, names = [_first(uuid, start)], start, dict[str, bytes]()
    head, end = _head(uuid), _head(uuid)[1] + message(_EVENT, integer(9, END))
    ends: list[int] = []

    def close(until: int) -> None:
        nonlocal last
        while ends and ends[-1] <= until:
            ended = max(ends.pop(), last)
            found.append(_packet(head[0], ended - last, end))
            last = ended

    for each in sorted(content, key=_order):
        began = max(each.began, start)
        close(began)
        began = max(began, last)
        name, new = _name(names, each.name)
        arrows = (fixed64(field, number) for field, ends in ((47, each.out), (48, each.into)) for number in ends)
        event = message(_EVENT, _TYPES[BEGIN], name, _step(each.step), *arrows)
        found.append(_packet(head[0], began - last, head[1] + new + event))
        last = began
        ends.append(max(began, min(each.ended, ends[-1]) if ends else each.ended))
    close(1 << 62)
    return b"".join(found)


def instants(uuid: int, start: int, content: Iterable[Instant]) -> bytes:
    """Return the points of a track."""
    found, last, head = [_first(uuid, start)], start, _head(uuid)
    for each in sorted(content, key=lambda each: each.at):
        told = (message(4, text(10, name), text(6, value)) for name, value in each.told.items())
        event = message(_EVENT, _TYPES[INSTANT], text(23, each.name), *told)
        found.append(_packet(head[0], max(0, each.at - last), head[1] + event))
        last = max(last, each.at)
    return b"".join(found)


def counts(uuid: int, start: int, points: Iterable[tuple[int, float]]) -> bytes:
    """Return the values of a counter: pairs of a time, growing, and a value."""
    found, last, head = [_first(uuid, start)], start, _head(uuid)
    for at, value in points:
        event = message(_EVENT, _TYPES[COUNTER], double(44, value))
        found.append(_packet(head[0], max(0, at - last), head[1] + event))
        last = max(last, at)
    return b"".join(found)


_TYPES: Final = {each: integer(9, each) for each in (BEGIN, END, INSTANT, COUNTER)}


def _order(each: Slice) -> tuple[int, int]:
    return each.began, -each.ended


def _described(uuid: int, *parts: bytes) -> bytes:
    return message(_PACKET, integer(_SEQUENCE, uuid), message(_DESCRIPTOR, integer(1, uuid), *parts))


def _first(uuid: int, start: int) -> bytes:
    """Return the first packet of a track's sequence: its clock, in µs, and what its other packets leave out."""
    boot = message(1, integer(1, BOOT_CLOCK), integer(2, start * 1000))
    own = message(1, integer(1, OWN_CLOCK), integer(2, start), integer(3, 1), integer(4, 1000))
    defaults = message(59, integer(58, OWN_CLOCK), message(11, integer(11, uuid)))
    step = message(_INTERNED, message(3, integer(1, _STEP_NAME), text(2, "step")))
    return message(_PACKET, integer(_SEQUENCE, uuid), integer(_FLAGS, 1), message(6, boot, own), defaults, step)


def _head(uuid: int) -> tuple[bytes, bytes]:
    return integer(8, 0)[:-1], integer(_SEQUENCE, uuid) + integer(_FLAGS, 2)


def _packet(head: bytes, distance: int, rest: bytes) -> bytes:
    content = head + varint(distance) + rest
    return b"\x0a" + varint(len(content)) + content


def _name(names: dict[str, bytes], name: str) -> tuple[bytes, bytes]:
    """Return the field with the number of a name, and the field that introduces a new one."""
    if (field := names.get(name)) is not None:
        return field, b""
    number = len(names) + 1
    names[name] = integer(10, number)
    return names[name], message(_INTERNED, message(2, integer(1, number), text(2, name)))


@lru_cache(maxsize=64)
def _step(step: int) -> bytes:
    """Return the field with the step of a slice. Neighbouring slices mostly have the same one."""
    return message(4, integer(1, _STEP_NAME), integer(4, step)) if step >= 0 else b""
