"""The place of a large value's buffers, as text in descriptors and send logs: files, and offsets in them.

The name of a slot alone means that it has all buffers, one after the other. Otherwise the text lists runs of buffers:
``slot@offset*count|…``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

__all__ = ["Run", "place_of", "renamed", "runs_of", "slots_of"]


class Run(NamedTuple):
    """The number of `buffers` in the file `slot`, from `offset` on, one after the other, each aligned to 64 bytes."""

    slot: str
    offset: int
    buffers: int


def runs_of(place: str, count: int) -> list[Run]:
    """Return the runs of the `count` buffers of a value. Raises `ValueError` for an invalid place."""
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
    """Return the text of these runs."""
    first, *more = runs
    if not more and not first.offset:
        return first.slot
    return "|".join(f"{slot}@{offset}*{count}" for slot, offset, count in (first, *more))


def slots_of(place: str) -> tuple[str, ...]:
    """Return the files of a value, each once; none for a value that is in no slot ("")."""
    if "@" not in place:
        return (place,) if place else ()
    return tuple(dict.fromkeys(part.partition("@")[0] for part in place.split("|")))


def renamed(place: str, name: Callable[[str], str]) -> str:
    """Return the place with other names of the files."""
    parts = (part.partition("@") for part in place.split("|"))
    return "|".join("".join((name(slot), *rest)) for slot, *rest in parts)
