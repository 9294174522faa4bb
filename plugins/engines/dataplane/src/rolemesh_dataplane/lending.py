"""Lend memory to consumers: arrays that an author keeps, and that ranks of this node read where they are.

A lent array lies in a slot of its rank. An operator that returns it sends the slot itself, so the only copy is that of
the consumer, into its own tensors. Before the rank runs its next operator, the array gets another slot behind the same
address, with the same content. So nobody writes to a slot that a consumer may still read, or ask for again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Protocol, TypeVar
from weakref import finalize

import numpy as np

from rolemesh_dataplane.codec import Buffer
from rolemesh_dataplane.mapping import Addresses, Bytes, map_shared, remap
from rolemesh_dataplane.shm import ALIGNMENT, NoSharedMemory, SlotPool, ValueSlot, aligned_size
from rolemesh_dataplane.slot_reader import SlotReader

__all__ = ["Lender", "Region"]

T = TypeVar("T")


class Sent(Protocol):
    """The state of an edge out of a rank."""

    @property
    def under_way(self) -> int:
        """Number of steps that some consumer has not released."""


class OutEdge(Protocol):
    """An edge out of a rank."""

    @property
    def state(self) -> Sent:
        """Its state."""


class Region:
    """Memory of an author: its address stays, and the slot behind it changes."""

    __slots__ = ("address", "size", "slot")

    def __init__(self, address: int, size: int, slot: ValueSlot) -> None:
        self.address, self.size, self.slot = address, size, slot


class Lender:
    """The regions of one rank, in slots of `pool`. Not thread-safe."""

    def __init__(self, pool: SlotPool, reader: SlotReader | None = None) -> None:
        """`reader` has what others lend to this rank."""
        self._pool, self._reader = pool, reader
        self._regions: list[Region] = []
        self._addresses: Addresses[Region] = Addresses()
        self.shown: list[Region] = []
        """The regions that were sent since the rank began its last operator."""

    @property
    def own_bytes(self) -> int:
        """Bytes of the regions that no consumer needs."""
        return sum(region.slot.capacity for region in self._regions if region.slot.users == 1)

    def lend(self, tensors: Mapping[str, T]) -> dict[str, T]:
        """See `RankContext.lend`."""
        arrays = {name: _array(tensor) for name, tensor in tensors.items()}
        starts, size = {}, 0
        for name, array in arrays.items():
            starts[name], size = size, size + aligned_size([array.nbytes])
        try:
            region = self.region(size) if size else None
        except NoSharedMemory:
            region = None
        if region is None:
            return dict(tensors)
        found = {}
        for name, array in arrays.items():
            flat = region[starts[name] : starts[name] + array.nbytes]
            np.copyto(flat, array.reshape(-1).view(np.uint8))
            found[name] = _like(tensors[name], flat, array)
        return found

    def region(self, size: int) -> Bytes:
        """Return `size` new bytes, which live as long as an array on them. Raises `NoSharedMemory`."""
        slot = self._pool.acquire(size, wait=False)
        found = self._opened(slot, lambda fd: map_shared(fd, size, writable=True))
        region = Region(found.__array_interface__["data"][0], size, slot)
        self._regions.append(region)
        self._addresses.add(found, region)
        finalize(found.base, self._end, region).atexit = False
        return found

    def _end(self, region: Region) -> None:
        self._regions.remove(region)
        self.shown = [each for each in self.shown if each is not region]
        self._pool.release(region.slot)

    def find(self, buffer: Buffer) -> tuple[Region, int] | None:
        """Return the region in which `buffer` lies at a multiple of 64 bytes, and where; None if there is none."""
        flat = np.frombuffer(buffer, np.uint8)
        found = self._addresses.find(flat.__array_interface__["data"][0], len(flat))
        return None if found is None or found[1] % ALIGNMENT else found

    def show(self, region: Region) -> ValueSlot | None:
        """Return the slot of a region, with one more user: consumers may read it. None if somebody has removed it."""
        slot = region.slot
        if not self._pool.links(slot):
            return None
        slot.users += 1
        if region not in self.shown:
            self.shown.append(region)
        return slot

    def take_back(self) -> None:
        """Give each region that was sent another slot, unless nobody needs what was sent. Raises `NoSharedMemory`."""
        shown, self.shown = self.shown, []
        try:
            while shown:
                self._take_back(shown[-1], wait=True)
                shown.pop()
        finally:
            self.shown += shown

    def idle(self, out_edges: Iterable[OutEdge]) -> None:
        """Use the time of a rank that waits: do what `take_back` will do, as far as there is memory for it, and tidy
        the reader. Leave regions alone that a consumer on one of the rank's `out_edges` may be reading."""
        if self._reader is not None and self._reader.lent:
            self._reader.tidy()
        if self.shown and not any(out_edge.state.under_way for out_edge in out_edges):
            with suppress(NoSharedMemory):
                while self.shown:
                    self._take_back(self.shown[-1], wait=False)
                    self.shown.pop()

    def _take_back(self, region: Region, *, wait: bool) -> None:
        old = region.slot
        if old.users <= 1 and self._pool.links(old) <= 1:
            return
        new = self._pool.acquire(region.size, wait=wait)

        def move(fd: int) -> None:
            np.copyto(self._pool.map(new)[: region.size], self._pool.map(old)[: region.size])
            remap(region.address, fd, region.size)

        self._opened(new, move)
        region.slot = new
        self._pool.release(old)

    def _opened(self, slot: ValueSlot, use: Callable[[int], T]) -> T:
        """Return what `use` makes of the file of a new slot. Release the slot if it fails."""
        try:
            with (self._pool.directory / slot.name).open("r+b", buffering=0) as file:
                return use(file.fileno())
        except BaseException:
            self._pool.release(slot)
            raise


def _array(tensor: object) -> np.ndarray:
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor)
    import torch

    assert isinstance(tensor, torch.Tensor)
    flat: np.ndarray = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat


def _like(tensor: T, flat: Bytes, array: np.ndarray) -> T:
    if isinstance(tensor, np.ndarray):
        return flat.view(array.dtype).reshape(array.shape)  # type: ignore[return-value]
    torch = sys.modules["torch"]
    return torch.frombuffer(flat, dtype=tensor.dtype).reshape(tensor.shape)  # type: ignore[no-any-return, attr-defined]
