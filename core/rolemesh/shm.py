"""Shared-memory slots: named files on tmpfs, mapped once, kept warm, written by one rank and read by its consumers.

A slot is written with one copy and read without any. First touch costs about eight times a warm copy, so a slot
that its consumers have released is used again rather than unlinked.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rolemesh.codec import Buffer
from rolemesh.errors import TransportError

__all__ = ["ALIGNMENT", "Slot", "SlotPool", "SlotReader", "aligned_size", "new_file"]

ALIGNMENT = 64
_PAGE = 2 << 20
"""Segments are multiples of this (2 MiB), so that values of slightly different size fit the same slot."""


def aligned_size(sizes: Sequence[int]) -> int:
    """Bytes that buffers of these sizes take, each aligned to 64."""
    return sum((size + ALIGNMENT - 1) & -ALIGNMENT for size in sizes)


def new_file(path: Path, size: int, what: str, remedy: str) -> mmap.mmap:
    """Make a file of `size` bytes that are all there, and map it. Raises `TransportError` if there is no memory."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        return mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    except OSError as error:
        os.unlink(path)
        raise TransportError(
            f"no shared memory for {size >> 20} MiB{what}: {error.strerror}",
            where=str(path),
            remedy=f"give /dev/shm more room (docker --shm-size), {remedy}",
        ) from error
    finally:
        os.close(fd)


class Slot:
    """A writable segment of `capacity` bytes in the file `name` of the pool's directory."""

    __slots__ = ("_array", "_map", "capacity", "name")

    def __init__(self, path: Path, capacity: int) -> None:
        """Make the file. Raises `TransportError` if there is no memory for it."""
        mapped = new_file(path, capacity, "", "lower the edge's credits, or send smaller values")
        self._take(path.name, mapped)

    @classmethod
    def found(cls, path: Path) -> Slot | None:
        """The slot in a file that is there already, if it is."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            mapped = mmap.mmap(fd, 0, flags=mmap.MAP_SHARED)
        finally:
            os.close(fd)
        slot = cls.__new__(cls)
        slot._take(path.name, mapped)
        return slot

    def _take(self, name: str, mapped: mmap.mmap) -> None:
        self.name, self.capacity, self._map = name, len(mapped), mapped
        self._array = np.frombuffer(mapped, np.uint8)

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Copy `buffers` one after the other, each aligned to 64 bytes."""
        offset = 0
        for buffer in buffers:
            size = len(buffer)
            if size:
                np.copyto(self._array[offset : offset + size], np.frombuffer(buffer, np.uint8))
            offset += (size + ALIGNMENT - 1) & -ALIGNMENT

    def views(self, sizes: Sequence[int]) -> list[Buffer]:
        """Read-only views of what `write` has put here."""
        return _views(memoryview(self._map).toreadonly(), sizes)


class SlotPool:
    """The slots that one rank writes, as files ``<prefix>-<n>`` in `directory` (made with mode 0700)."""

    def __init__(self, directory: str | Path, prefix: str) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._prefix = prefix
        self._free: list[Slot] = []
        self._count = 0
        self._all: set[str] = set()

    @property
    def free(self) -> int:
        """Slots that wait to be used again."""
        return len(self._free)

    def acquire(self, nbytes: int) -> Slot:
        """The smallest free slot that holds `nbytes`, or a new one in place of the largest that is too small."""
        best = min((s for s in self._free if s.capacity >= nbytes), key=lambda s: s.capacity, default=None)
        if best is not None:
            self._free.remove(best)
            return best
        if self._free:
            self._unlink(max(self._free, key=lambda s: s.capacity))
        self._count += 1
        capacity = max(1, -(-nbytes // _PAGE)) * _PAGE
        slot = Slot(self.directory / f"{self._prefix}-{self._count}", capacity)
        self._all.add(slot.name)
        return slot

    def adopt(self, name: str) -> Slot | None:
        """The slot `name` of a former generation, as if it had been acquired here; None if its file is gone."""
        slot = Slot.found(self.directory / name)
        if slot is not None:
            self._all.add(name)
        return slot

    def release(self, slot: Slot) -> None:
        """Nobody needs the content any more."""
        self._free.append(slot)

    def _unlink(self, slot: Slot) -> None:
        self._free.remove(slot)
        self._all.discard(slot.name)
        (self.directory / slot.name).unlink(missing_ok=True)

    def close(self, *, keep: bool = False) -> None:
        """Remove the files, or `keep` them for a successor. Readers that have mapped them keep what they see."""
        for name in self._all if not keep else ():
            (self.directory / name).unlink(missing_ok=True)
        self._all.clear()
        self._free.clear()


class SlotReader:
    """Read-only maps of other ranks' slots, made once each.

    Views keep their map alive, so a value that outlives its operator never crashes; but once the consumer has
    released it, its producer may write the next value there. Copy what you keep.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._maps: dict[str, memoryview] = {}

    def read(self, name: str, sizes: Sequence[int]) -> list[Buffer]:
        """Views of the buffers in slot `name`. Raises `TransportError` if it is not there or too small."""
        view = self._maps.get(name) or self._open(name)
        if aligned_size(sizes) > len(view):
            raise TransportError(f"buffers of {sum(sizes)} bytes in a slot of {len(view)}", where=name)
        return _views(view, sizes)

    def _open(self, name: str) -> memoryview:
        if "/" in name or name.startswith("."):
            raise TransportError(f"slot name {name!r} leaves the job's directory")
        for known in [n for n in self._maps if not (self._directory / n).exists()]:
            del self._maps[known]
        try:
            fd = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise TransportError(
                f"slot {name} is gone: {error.strerror}", where=str(self._directory), remedy="its producer has died"
            ) from error
        try:
            mapped = mmap.mmap(fd, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        view = self._maps[name] = memoryview(mapped).toreadonly()
        return view

    def close(self) -> None:
        """Forget the maps; those that are still viewed live on until the views go."""
        self._maps.clear()


def _views(view: memoryview, sizes: Sequence[int]) -> list[Buffer]:
    buffers: list[Buffer] = []
    offset = 0
    for size in sizes:
        buffers.append(view[offset : offset + size])
        offset += (size + ALIGNMENT - 1) & -ALIGNMENT
    return buffers
