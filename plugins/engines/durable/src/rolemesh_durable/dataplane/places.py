"""Where the buffers of a large value lie, as the text that descriptors and send logs have: files, and where in them.

The name of a slot alone: all of them, one after the other. Else runs of buffers: ``slot@offset*count|…``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

__all__ = ["Run", "place_of", "renamed", "runs_of", "slots_of"]


class Run(NamedTuple):
    """So many `buffers` in the file `slot`, from `offset` on, one after the other, each aligned to 64 bytes."""

    slot: str
    offset: int
    buffers: int


def runs_of(place: str, count: int) -> list[Run]:
    """Where the `count` buffers of a value lie. Raises `ValueError` for a place that is none."""
    if "@" not in place:
        return [Run(place, 0, count)]
    runs = []
    for part in place.split("|"):
        slot, _, where = part.partition("@")
        offset, _, number = where.partition("*")
        runs.append(Run(slot, int(offset), int(number)))
    if sum(run.buffers for run in runs) != count or any(run.offset < 0 or run.buffers < 0 for run in runs):
        raise ValueError(f"{place!r} is no place of {count} buffers")
    return runs


def place_of(runs: Iterable[Run]) -> str:
    """The text of these runs."""
    first, *more = runs
    if not more and not first.offset:
        return first.slot
    return "|".join(f"{slot}@{offset}*{count}" for slot, offset, count in (first, *more))


def slots_of(place: str) -> tuple[str, ...]:
    """The files that a value lies in, each once; none for one that lies in no slot ("")."""
    if "@" not in place:
        return (place,) if place else ()
    return tuple(dict.fromkeys(part.partition("@")[0] for part in place.split("|")))


def renamed(place: str, name: Callable[[str], str]) -> str:
    """The place when its files have other names."""
    parts = (part.partition("@") for part in place.split("|"))
    return "|".join("".join((name(slot), *rest)) for slot, *rest in parts)
