"""The consumer's side of shared-memory slots: read the data of other ranks without a copy."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from mmap import PAGESIZE
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from rolemesh_dataplane.codec import Buffer, Received
from rolemesh_dataplane.mapping import Addresses, Bytes, MapCache, PrivateMap, is_written, map_shared
from rolemesh_dataplane.places import Run, runs_of
from rolemesh_dataplane.shm import ALIGNMENT, MAPS, Period, aligned_size, is_short, views_of
from rolemesh_dataplane.transports import TransportError

__all__ = ["Found", "SlotReader"]

M = TypeVar("M")

PRIVATE_MAPS = 256
"""Number of slots with large tensors that have a writable map, beside the shared one."""


class Found(NamedTuple):
    """Bytes that lie unchanged at `offset` of the file `slot`, which is `mapped` here."""

    slot: str
    inode: int
    mapped: Bytes
    offset: int


class SlotReader:
    """Maps of other ranks' slots, each kept while it is used.

    Views keep their map alive, so a value that outlives its operator never crashes. But when the consumer has released
    it, its producer may write the next value there: copy what you keep.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._maps = MapCache(MAPS)
        self._private: dict[tuple[str, int], _Private] = {}
        self._period = Period()
        self.lent: list[_Private] = []
        """Writable maps of values that may be gone by now."""
        self._addresses: Addresses[tuple[str, int, int]] = Addresses()
        """For each map: the slot, its inode, and where in the slot a writable map begins; -1 for a shared map."""

    def read(self, place: str, sizes: Sequence[int]) -> Received:
        """Return views of the buffers at `place` (`rolemesh_dataplane.places`).

        Raises `TransportError` if a slot is missing or too small, and `ValueError` for an invalid place.
        """
        runs = runs_of(place, len(sizes))
        return _SlotBuffers(_views(runs, sizes, self._shared), self, runs, sizes)

    def _shared(self, name: str) -> memoryview:
        if (known := self._maps.get(name)) is not None:
            return known.data
        found, inode = self._map(name, lambda fd, size: map_shared(fd, size, writable=False))
        self._maps.put(name, found)
        self._addresses.add(found, (name, inode, -1))
        return found.data

    def find(self, buffer: Buffer) -> Found | None:
        """Return the place of `buffer`, if it lies at a multiple of 64 bytes in a slot, unchanged and still mapped.

        Shared maps cannot be written here. In a writable map, written pages no longer belong to the file.
        """
        flat = np.frombuffer(buffer, np.uint8)
        address = flat.__array_interface__["data"][0]
        at = self._addresses.find(address, len(flat))
        if at is None or at[1] % ALIGNMENT:
            return None
        (name, inode, start), offset = at
        mapped = self._maps.get(name)
        if mapped is None or (start >= 0 and is_written(address, len(flat))):
            return None
        return Found(name, inode, mapped, max(0, start) + offset)

    def trim(self, step: int, now: float) -> None:
        """Forget the maps that were not used for a while; all if memory is short, because an unlinked file stays while
        it is mapped."""
        self.tidy()
        if is_short(self._directory):
            self.close()
        elif self._period.is_over(step, now):
            self._maps.age()
            self._private = {at: kept for at, kept in self._private.items() if self._maps.get(at[0]) is not None}

    def tidy(self) -> None:
        """Forget what was written to values that are gone, so that the next ones need not look for it."""
        self.lent = [known for known in self.lent if not known.forget()]

    def private(self, name: str, start: int, size: int) -> Bytes:
        """Return `size` bytes of slot `name` from `start` on, for writing. Writes are private, and later reads of the
        slot do not see them.

        A small part of a slot has a map of its own: many values may lie in one slot.
        """
        page = start - start % PAGESIZE
        end = start + size
        known = self._private.pop((name, page), None)
        if known is None or known.is_lent or known.end < end:  # lent: its reader keeps it, and what was written there
            while len(self._private) >= PRIVATE_MAPS:
                del self._private[next(iter(self._private))]

            def make(fd: int, there: int) -> tuple[PrivateMap, int]:
                last = min(end, there) if page or 2 * size < there else there
                return PrivateMap(fd, last - page, page), last

            (mapped, last), inode = self._map(name, make)
            known = _Private(mapped, inode, last)
        self._private[name, page] = known
        lent = known.lend()
        self.lent.append(known)
        self._addresses.add(lent, (name, known.inode, page))
        return lent[start - page :]

    def _map(self, name: str, make: Callable[[int, int], M]) -> tuple[M, int]:
        """Return the result of `make` for the file, and its inode."""
        if "/" in name or name.startswith("."):
            raise TransportError(f"slot name {name!r} leaves the job's directory")
        try:
            fd = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise TransportError(
                f"slot {name} is gone: {error.strerror}", where=str(self._directory), remedy="its producer has died"
            ) from error
        try:
            found = os.fstat(fd)
            try:
                return make(fd, found.st_size), found.st_ino
            except OSError:
                self.close()  # as many maps as the kernel allows: perhaps they are ours
                return make(fd, found.st_size), found.st_ino
        except OSError as error:
            raise TransportError(
                f"slot {name} cannot be mapped: {error.strerror}",
                where=str(self._directory),
                remedy="a workload that keeps what it gets keeps its memory: copy it; or raise vm.max_map_count",
            ) from error
        finally:
            os.close(fd)

    def close(self) -> None:
        """Forget the maps. Viewed ones live on until the views are gone."""
        self._maps.clear()
        self._private.clear()


class _Private:
    """A private map, and the present user of its bytes."""

    __slots__ = ("_lent", "_map", "end", "inode")

    def __init__(self, mapped: PrivateMap, inode: int, end: int) -> None:
        """`end`: where in the slot the map ends."""
        self._map, self.inode, self.end = mapped, inode, end
        self._lent: weakref.ref[Bytes] | None = None

    @property
    def is_lent(self) -> bool:
        return self._lent is not None and self._lent() is not None

    def forget(self) -> bool:
        """Forget what was written, unless the value is still there. Return True if nothing is left to forget."""
        if self.is_lent:
            return False
        self._map.forget()
        return True

    def lend(self) -> Bytes:
        array = self._map.array()
        self._lent = weakref.ref(array)
        return array


class _SlotBuffers(Received):
    """The buffers of one value in a slot."""

    def __init__(self, views: Sequence[Buffer], reader: SlotReader, runs: Sequence[Run], sizes: Sequence[int]) -> None:
        super().__init__(views)
        self._reader, self._runs, self._sizes = reader, runs, sizes
        self._own: list[Buffer] | None = None

    def writable(self, index: int) -> Buffer:
        """Return a view of the slot that is copied on write."""
        if self._own is None:
            spans: dict[str, tuple[int, int]] = {}
            """For each slot, where the value's runs in it begin and end."""
            at = 0
            for name, start, count in self._runs:
                end = start + aligned_size(self._sizes[at : (at := at + count)])
                known = spans.get(name, (start, end))
                spans[name] = min(start, known[0]), max(end, known[1])
            maps = {name: self._reader.private(name, start, end - start) for name, (start, end) in spans.items()}
            self._own = _views(
                [run._replace(offset=run.offset - spans[run.slot][0]) for run in self._runs],
                self._sizes,
                lambda name: maps[name].data,
            )
        return self._own[index]


def _views(runs: Sequence[Run], sizes: Sequence[int], slot: Callable[[str], memoryview]) -> list[Buffer]:
    """Return the buffers of these sizes that lie in `runs`. Raises `TransportError` for a slot that is too small."""
    views: list[Buffer] = []
    for name, offset, count in runs:
        view, there = slot(name)[offset:], sizes[len(views) : len(views) + count]
        if aligned_size(there) > len(view):
            raise TransportError(f"buffers of {sum(there)} bytes in a slot of {len(view)}", where=name)
        views += views_of(view, there)
    return views
