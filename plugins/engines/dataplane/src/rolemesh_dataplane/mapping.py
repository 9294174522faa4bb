"""Map files into memory without keeping a descriptor per map, and limit the number of maps.

Python's `mmap` keeps a duplicate of the file's descriptor for the life of the map, so a rank with a thousand values in
shared memory would need a thousand descriptors.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import struct
from bisect import bisect_right
from mmap import MAP_POPULATE, MAP_PRIVATE, MAP_SHARED, PAGESIZE, PROT_READ, PROT_WRITE
from typing import Any, Final, Generic, TypeAlias, TypeVar
from weakref import ref

import numpy as np

__all__ = ["Addresses", "Bytes", "MapCache", "PrivateMap", "is_written", "map_shared", "remap"]

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"

_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000
_MADV_DONTNEED: Final = 4
_FAILED: Final = ctypes.c_void_p(-1).value
_SCAN: Final = struct.Struct("<12Q")
_PAGEMAP_SCAN: Final = 3 << 30 | _SCAN.size << 16 | ord("f") << 8 | 16
_FILE, _THERE = 1 << 2, 1 << 3 | 1 << 4
"""Categories of pages: of a file; in memory or swapped out."""

_libc = ctypes.CDLL(None, use_errno=True)
_mmap, _munmap, _mprotect, _madvise = _libc.mmap, _libc.munmap, _libc.mprotect, _libc.madvise
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_mprotect.argtypes = _madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class _Region:
    """The owner of a map: it is unmapped when the last array or view of it is gone."""

    __slots__ = ("__array_interface__", "__weakref__", "_unmap", "address", "size")

    def __init__(self, fd: int, size: int, protection: int, flags: int, *, writable: bool, start: int = 0) -> None:
        address = _mmap(None, size, protection, flags, fd, start)
        if address == _FAILED:
            raise _error("mmap")
        self.address, self.size, self._unmap = address, size, _munmap
        self.__array_interface__ = {"data": (address, not writable), "shape": (size,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        if hasattr(self, "_unmap"):
            self._unmap(self.address, self.size)


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def map_shared(fd: int, size: int, *, writable: bool) -> Bytes:
    """Return the first `size` bytes of a file, shared with all processes that map it. `fd` may be closed afterwards.

    The array keeps the map, and so does every view of it. Raises `OSError`: `ENOMEM` also if the process has as many
    maps as the kernel allows (``vm.max_map_count``).
    """
    protection = PROT_READ | PROT_WRITE if writable else PROT_READ
    return np.asarray(_Region(fd, size, protection, MAP_SHARED | MAP_POPULATE, writable=writable))


def remap(address: int, fd: int, size: int) -> None:
    """Put the first `size` bytes of another file behind the `address` of a map by `map_shared`. Raises `OSError`."""
    flags = MAP_SHARED | MAP_POPULATE | _MAP_FIXED
    if _mmap(address, size, PROT_READ | PROT_WRITE, flags, fd, 0) == _FAILED:
        raise _error("mmap")


class PrivateMap:
    """A file's bytes, copied on write: written pages are private, others have the file's present content."""

    def __init__(self, fd: int, size: int, start: int = 0) -> None:
        """Map `size` bytes of a file, from `start` on, a multiple of the page size. `fd` may be closed afterwards.

        Raises `OSError`.
        """
        # Populated while it cannot be written yet: populating a writable map copies every page.
        flags = MAP_PRIVATE | _MAP_NORESERVE | MAP_POPULATE
        self._region = _Region(fd, size, PROT_READ, flags, writable=True, start=start)
        if _mprotect(self._region.address, size, PROT_READ | PROT_WRITE):
            raise _error("mprotect")
        self._faults = 0
        self._clean = True

    def array(self) -> Bytes:
        """Return the bytes of the file, writable. Earlier writes to arrays from here are forgotten.

        Each call returns a new array, which keeps the map.
        """
        self.forget()
        self._clean = False
        return np.asarray(self._region)

    def forget(self) -> None:
        """Forget what was written to the arrays. This costs a fifth of a copy, so do it before the next one is
        needed."""
        if self._clean:
            return
        region, self._clean = self._region, True
        # Forgetting costs as much as half a copy, since every page is mapped again on its next read; looking costs a
        # twentieth of that. The first write to a page is a page fault: without one there is nothing to look for.
        if _page_faults() != self._faults and is_written(region.address, region.size):
            _madvise(region.address, region.size, _MADV_DONTNEED)
        self._faults = _page_faults()


def _page_faults() -> int:
    """Return the number of page faults of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


def is_written(address: int, size: int) -> bool:
    """Return whether a private map of a file has written pages in this range. True if the kernel does not say.

    Linux, admin-guide/mm/pagemap: ``PAGEMAP_SCAN`` (6.7 and later) is faster than reading the entries, of which bit 63
    is a page in memory, 62 one that is swapped out, 61 one of the file.
    """
    first, end = address // PAGESIZE, -(-(address + size) // PAGESIZE)
    found = np.zeros(3, np.uint64)
    where = found.__array_interface__["data"][0]
    scan = _SCAN.pack(_SCAN.size, 0, first * PAGESIZE, end * PAGESIZE, 0, where, 1, 1, _FILE, _FILE, _THERE, _THERE)
    try:
        return bool(fcntl.ioctl(_pagemap(), _PAGEMAP_SCAN, bytearray(scan)) > 0)
    except OSError:
        pass
    try:
        entries = np.frombuffer(os.pread(_pagemap(), 8 * (end - first), 8 * first), np.uint64) >> np.uint64(61)
    except OSError:
        return True
    return len(entries) < end - first or bool(((entries >= 2) & ((entries & 1) == 0)).any())


_opened: tuple[int, int] = (-1, -1)
"""The process that opened its page map, and the descriptor. A forked child would read its parent's map there."""


def _pagemap() -> int:
    global _opened
    pid, fd = _opened
    if pid != os.getpid():
        if fd >= 0:
            os.close(fd)
        fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        _opened = os.getpid(), fd
    return fd


T = TypeVar("T")


class Addresses(Generic[T]):
    """Finds the map, among living ones, that contains an address. Each has an item with facts about it."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._maps: list[tuple[ref[_Region], T]] = []

    def add(self, array: Bytes, item: T) -> None:
        """Add a map. `array` is all of a map that was created here."""
        region = array.base
        assert isinstance(region, _Region)
        at = bisect_right(self._starts, region.address)
        if at and self._starts[at - 1] == region.address:
            self._maps[at - 1] = ref(region), item
        else:
            self._starts.insert(at, region.address)
            self._maps.insert(at, (ref(region), item))

    def find(self, address: int, size: int) -> tuple[T, int] | None:
        """Return the item of the map that contains these bytes, and their offset in it; None if there is none."""
        while (at := bisect_right(self._starts, address) - 1) >= 0:
            known, item = self._maps[at]
            region = known()
            if region is not None:
                offset = address - region.address
                return (item, offset) if offset + size <= region.size else None
            del self._starts[at], self._maps[at]  # gone, so another one may lie around here now
        return None


class MapCache:
    """The maps that were used last, by name: at most `limit`, and at least the newest half of that.

    There are two generations, the current and the previous one. A map that is not requested for a whole generation is
    forgotten. It lives on until its views are gone.
    """

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._young: dict[str, Bytes] = {}
        self._old: dict[str, Bytes] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, name: str) -> Bytes | None:
        """Return the map of `name`, if it is here."""
        found = self._young.get(name)
        if found is None:
            found = self._old.pop(name, None)
            if found is not None:
                self.put(name, found)
        return found

    def put(self, name: str, found: Bytes) -> None:
        """Add a map."""
        if len(self._young) >= self._half:
            self.age()
        self._young[name] = found

    def drop(self, name: str) -> None:
        """Forget a map."""
        self._young.pop(name, None)
        self._old.pop(name, None)

    def age(self) -> None:
        """Forget the maps that were not used since the last call."""
        self._young, self._old = {}, self._young

    def clear(self) -> None:
        """Forget all maps."""
        self._young, self._old = {}, {}
