"""The consumer's side of shared-memory slots: what other ranks have written, read without a copy."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rolemesh_durable.dataplane.codec import Buffer, Received
from rolemesh_durable.dataplane.mapping import Bytes, MapCache, PrivateMap, map_shared
from rolemesh_durable.dataplane.shm import MAPS, Period, aligned_size, is_short, views_of
from rolemesh_durable.transports import TransportError

__all__ = ["SlotReader"]

M = TypeVar("M")

PRIVATE_MAPS = 256
"""Slots with large tensors that have a map to write to, beside the one that all see."""


class SlotReader:
    """Maps of other ranks' slots, each kept while it is used.

    Views keep their map alive, so a value that outlives its operator never crashes; but once the consumer has
    released it, its producer may write the next value there. Copy what you keep.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._maps = MapCache(MAPS)
        self._private: dict[str, _Private] = {}
        self._period = Period()

    def read(self, name: str, sizes: Sequence[int]) -> Received:
        """Views of the buffers in slot `name`. Raises `TransportError` if it is not there or too small."""
        found = self._maps.get(name)
        if found is None:
            found = self._open(name)
            self._maps.put(name, found)
        view = found.data
        if aligned_size(sizes) > len(view):
            raise TransportError(f"buffers of {sum(sizes)} bytes in a slot of {len(view)}", where=name)
        return _SlotBuffers(views_of(view, sizes), self, name, sizes)

    def trim(self, step: int, now: float) -> None:
        """Forget the maps that were not used for a while; all, where memory is short: what is unlinked stays as long
        as somebody has mapped it."""
        if is_short(self._directory):
            self.close()
        elif self._period.is_over(step, now):
            self._maps.age()
            self._private = {name: kept for name, kept in self._private.items() if self._maps.get(name) is not None}

    def private(self, name: str) -> Bytes:
        """The bytes of slot `name`, to write to: nobody else sees that, nor does who reads the slot again."""
        known = self._private.pop(name, None)
        if known is None or known.is_lent:  # then its reader keeps it, and what was written there
            while len(self._private) >= PRIVATE_MAPS:
                del self._private[next(iter(self._private))]
            known = _Private(self._map(name, PrivateMap))
        self._private[name] = known
        return known.lend()

    def _open(self, name: str) -> Bytes:
        return self._map(name, lambda fd, size: map_shared(fd, size, writable=False))

    def _map(self, name: str, make: Callable[[int, int], M]) -> M:
        if "/" in name or name.startswith("."):
            raise TransportError(f"slot name {name!r} leaves the job's directory")
        try:
            fd = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise TransportError(
                f"slot {name} is gone: {error.strerror}", where=str(self._directory), remedy="its producer has died"
            ) from error
        try:
            size = os.fstat(fd).st_size
            try:
                return make(fd, size)
            except OSError:
                self.close()  # as many maps as the kernel allows: perhaps they are ours
                return make(fd, size)
        except OSError as error:
            raise TransportError(
                f"slot {name} cannot be mapped: {error.strerror}",
                where=str(self._directory),
                remedy="a workload that keeps what it gets keeps its memory: copy it; or raise vm.max_map_count",
            ) from error
        finally:
            os.close(fd)

    def close(self) -> None:
        """Forget the maps; those that are still viewed live on until the views go."""
        self._maps.clear()
        self._private.clear()


class _Private:
    """A private map, and who has its bytes now."""

    __slots__ = ("_lent", "_map")

    def __init__(self, mapped: PrivateMap) -> None:
        self._map = mapped
        self._lent: weakref.ref[Bytes] | None = None

    @property
    def is_lent(self) -> bool:
        return self._lent is not None and self._lent() is not None

    def lend(self) -> Bytes:
        array = self._map.array()
        self._lent = weakref.ref(array)
        return array


class _SlotBuffers(Received):
    """The buffers of one value in a slot."""

    def __init__(self, views: Sequence[Buffer], reader: SlotReader, name: str, sizes: Sequence[int]) -> None:
        super().__init__(views)
        self._reader, self._name, self._sizes = reader, name, sizes
        self._own: list[Buffer] | None = None

    def writable(self, index: int) -> Buffer:
        """A view of the slot that is copied on write."""
        if self._own is None:
            self._own = views_of(self._reader.private(self._name).data, self._sizes)
        return self._own[index]
