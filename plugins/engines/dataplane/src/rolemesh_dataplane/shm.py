"""Shared-memory slots: named files on tmpfs, kept warm, written by one rank and read by its consumers.

A slot is written with one copy and read without any. The first touch of a page costs about eight times a warm copy. So
a slot that its consumers have released is reused, and unlinked when it was not needed for a while. A rank that forwards
data in another rank's slot links the file under a name of its own; a file is written to only while it has no other
name.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from rolemesh_dataplane.codec import Buffer
from rolemesh_dataplane.mapping import Bytes, MapCache, map_shared
from rolemesh_dataplane.transports import TransportError

__all__ = [
    "ALIGNMENT", "NoSharedMemory", "Period", "Persist", "SlotPool", "ValueSlot", "aligned_size", "capacity_of",
    "is_full", "is_short", "named", "new_file", "views_of",
]  # fmt: skip

ALIGNMENT: Final = 64
MAPS: Final = 4096
"""Maximum number of files that a rank maps at once as a producer, and again as a consumer. The kernel allows 65,530
maps per process, and retained values may use more slots than that."""
RESERVE: Final = 4 << 20
LEFT: Final = 32
"""Bytes, and share of the memory (the larger counts), that values leave free. A restarting rank needs some for its log
and its snapshot, and other ranks may wait for it."""
SCARCE: Final = 8
"""Memory is short when less than this part of it is free, beside the reserve. Then no slot is kept warm."""
_PAGE: Final = 4096
_FULL: Final = frozenset((errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EMFILE, errno.ENFILE))
_PERIOD_S, _PERIOD_STEPS = 60.0, 16

Persist: TypeAlias = Callable[[Callable[[], Any]], Any]
"""Function that calls a file-making function again until it does not raise `NoSharedMemory`, as long as waiting can
help."""


class NoSharedMemory(TransportError):
    """There is no room for a file of `nbytes`."""

    nbytes = 0


def aligned_size(sizes: Sequence[int]) -> int:
    """Return the bytes of buffers of these sizes, each aligned to 64."""
    return sum((size + ALIGNMENT - 1) & -ALIGNMENT for size in sizes)


def capacity_of(nbytes: int) -> int:
    """Return the bytes of the slot for `nbytes`: whole pages, in eight classes from each power of two to the next.

    So at most an eighth is unused, beside a page, and values of slightly different size fit the same slots.
    """
    step = max(_PAGE, 1 << max(0, (nbytes - 1).bit_length() - 4))
    return max(1, -(-nbytes // step)) * step


def named(directory: str | Path, prefix: str) -> list[Path]:
    """Return the files whose names begin with `prefix`, in order. A node's ranks share a folder, and a thousand of them
    read it."""
    try:
        return [Path(directory, name) for name in sorted(os.listdir(directory)) if name.startswith(prefix)]
    except FileNotFoundError:
        return []


def is_full(error: BaseException | None) -> bool:
    """Return whether the system had no room for a file or a map, or no descriptor. There may be some later."""
    return isinstance(error, OSError) and error.errno in _FULL


def is_short(directory: Path) -> bool:
    """Return whether the memory of `directory` is nearly used up."""
    try:
        at = os.statvfs(directory)
    except OSError:
        return False
    return at.f_bavail * at.f_frsize < reserve(at) + at.f_blocks * at.f_frsize // SCARCE


def reserve(at: os.statvfs_result) -> int:
    """Return the bytes that values leave free in a file system."""
    return max(RESERVE, at.f_blocks * at.f_frsize // LEFT)


def new_file(path: Path, size: int, what: str, remedy: str, *, spare: bool = True) -> Bytes:
    """Create a file of `size` allocated bytes, and map it. Raises `NoSharedMemory` if there is no room.

    With `spare` the reserve stays free.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            at = os.fstatvfs(fd)
            # Asked before, since the attempt would take all that is left from the others while it lasts.
            if at.f_bavail * at.f_frsize < size + (reserve(at) if spare else 0):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.posix_fallocate(fd, 0, size)
            return map_shared(fd, size, writable=True)
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(fd)
    except OSError as error:
        if not is_full(error):
            raise TransportError(
                f"a file in shared memory cannot be made: {error.strerror}", where=str(path)
            ) from error
        raise _full(error, path, size, what, remedy) from error


def _full(error: OSError, path: Path, size: int, what: str, remedy: str) -> NoSharedMemory:
    full = NoSharedMemory(
        f"no shared memory for {size / (1 << 20):.3g} MiB{what}: {error.strerror}",
        where=str(path),
        remedy=f"give /dev/shm more room (docker --shm-size), {remedy}",
    )
    full.nbytes = size
    return full


class Period:
    """Measures idle time: a period lasts a minute, and at least 16 steps, so that slow steps do not count as idle."""

    def __init__(self) -> None:
        self._step, self._ends = 0, 0.0

    def is_over(self, step: int, now: float) -> bool:
        """Return whether the period is over at `step` and `now` (monotonic, in seconds). If so, the next one begins."""
        if now < self._ends or 0 <= step - self._step < _PERIOD_STEPS:
            return False
        self._step, self._ends = step, now + _PERIOD_S
        return True


class ValueSlot:
    """`capacity` bytes in the file `name` of the directory of `pool`."""

    __slots__ = ("_pool", "capacity", "linked", "name", "users")

    def __init__(self, name: str, capacity: int, pool: SlotPool, linked: tuple[str, int] | None = None) -> None:
        """`linked`: the file also belongs to another rank; its name there, and its inode."""
        self.name, self.capacity, self._pool, self.linked = name, capacity, pool, linked
        self.users = 1
        """Number of releases after which nobody needs the content."""

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Copy `buffers` one after the other, each aligned to 64 bytes."""
        array = self._pool.map(self)
        offset = 0
        for buffer in buffers:
            size = len(buffer)
            if size:
                np.copyto(array[offset : offset + size], np.frombuffer(buffer, np.uint8))
            offset += (size + ALIGNMENT - 1) & -ALIGNMENT

    def views(self, sizes: Sequence[int], offset: int = 0) -> list[Buffer]:
        """Return read-only views of the content from `offset` on."""
        return views_of(self._pool.map(self).data.toreadonly()[offset:], sizes)


class SlotPool:
    """The slots that one rank writes, as files ``<prefix>-<n>`` in `directory` (made with mode 0700)."""

    def __init__(self, directory: str | Path, prefix: str) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._persist: Persist = lambda make: make()
        self.used_bytes = self.free_bytes = 0
        """Bytes of the slots in use, and of those that wait to be reused."""
        self._prefix, self._folder = prefix, str(self.directory)
        self._count = 0
        self._used: set[str] = set()
        self._free: dict[int, deque[ValueSlot]] = {}
        self._lent: dict[int, deque[ValueSlot]] = {}
        """Free slots that another rank had linked when they were to be reused; the oldest first."""
        self._names: dict[tuple[str, int], list[str]] = {}
        """Name and inode of a file that was linked before → the names that it had here. Readers have it mapped under
        them."""
        self._least: dict[int, int] = {}
        """Capacity → minimum number of free slots during the present period."""
        self._maps = MapCache(MAPS)
        self._period = Period()

    def await_memory(self, persist: Persist) -> None:
        """Create slots with `persist(make)` from now on, which may wait for memory."""
        self._persist = persist

    @property
    def free(self) -> int:
        """Return the slots that wait to be reused."""
        return sum(map(len, (*self._free.values(), *self._lent.values())))

    def acquire(self, nbytes: int, *, wait: bool = True) -> ValueSlot:
        """Return a free slot for `nbytes` of which at most a fifth is left unused, or a new one. Raises
        `NoSharedMemory`, if it may not `wait` at once."""
        capacity = wanted = capacity_of(nbytes)
        slot = None
        while self.free_bytes and slot is None and capacity <= wanted + (wanted >> 2):
            slot = self._again(capacity)
            capacity = capacity_of(capacity + 1)
        return self._use(slot or self._new(wanted, wait))

    def _use(self, slot: ValueSlot) -> ValueSlot:
        self.used_bytes += slot.capacity
        self._used.add(slot.name)
        slot.users = 1
        return slot

    def _again(self, capacity: int) -> ValueSlot | None:
        """Return a free slot that has no other name, preferably the one used last."""
        free, lent = self._free.get(capacity), self._lent.get(capacity)
        while free:
            slot = free.pop()
            self._least[capacity] = min(self._least.get(capacity, 0), len(free))
            if (links := self.links(slot)) == 1:
                self.free_bytes -= capacity
                return slot
            if links:
                self._lent.setdefault(capacity, deque()).append(slot)
            else:
                self.free_bytes -= capacity
        if lent and self.links(lent[0]) < 2:
            slot = lent.popleft()
            self.free_bytes -= capacity
            return slot if self.links(slot) else None
        return None

    def links(self, slot: ValueSlot) -> int:
        """Return the number of names of a slot's file: 0 if somebody has removed it, 2 if another rank forwards it."""
        try:
            return os.stat(f"{self._folder}/{slot.name}").st_nlink
        except FileNotFoundError:
            return 0

    def link(self, name: str, inode: int, mapped: Bytes) -> ValueSlot | None:
        """Link the file `name` of another rank, which is `mapped` here, under a name of this rank, as if it had been
        acquired and written; None if it cannot be linked any more. The content stays until it is released here."""
        if len(self._names) > MAPS:
            self._names.clear()
        known = self._names.setdefault((name, inode), [])
        own = known.pop() if known else self._next_name()
        path = f"{self._folder}/{own}"
        try:
            os.link(f"{self._folder}/{name}", path)
            if os.stat(path).st_ino != inode:
                os.unlink(path)
                return None
        except OSError:
            return None
        self._maps.put(own, mapped)
        return self._use(ValueSlot(own, len(mapped), self, (name, inode)))

    def _next_name(self) -> str:
        self._count += 1
        return f"{self._prefix}-{self._count}"

    def _new(self, capacity: int, wait: bool) -> ValueSlot:
        try:
            return self._make(capacity)
        except NoSharedMemory:
            self.give_back(self.free_bytes)
            if not wait:
                raise
            slot: ValueSlot = self._persist(lambda: self._make(capacity))
            return slot

    def _make(self, capacity: int) -> ValueSlot:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = self._next_name()
        mapped = new_file(self.directory / name, capacity, "", "lower the edge's credits, or send smaller values")
        self._maps.put(name, mapped)
        return ValueSlot(name, capacity, self)

    def adopt(self, name: str) -> ValueSlot | None:
        """Take over the slot `name` of a former generation, as if it had been acquired here; None if its file is
        gone."""
        try:
            found = os.lstat(self.directory / name)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        linked = (name, found.st_ino) if found.st_nlink > 1 else None
        return self._use(ValueSlot(name, found.st_size, self, linked))

    def release(self, slot: ValueSlot) -> None:
        """Remove a user of a slot. Without one, its content may be overwritten."""
        slot.users -= 1
        if slot.users <= 0 and slot.name in self._used:
            self._used.discard(slot.name)
            self.used_bytes -= slot.capacity
            if slot.linked is not None:
                self._maps.drop(slot.name)
                self._remove(slot.name)
                if slot.linked in self._names:
                    self._names[slot.linked].append(slot.name)
                return
            self.free_bytes += slot.capacity
            self._free.setdefault(slot.capacity, deque()).append(slot)

    def forget_lost(self) -> None:
        """Forget the free slots whose files somebody has removed."""
        for slots in (self._free, self._lent):
            for capacity, free in slots.items():
                left = deque(slot for slot in free if self.links(slot))
                self.free_bytes -= capacity * (len(free) - len(left))
                slots[capacity] = left
        self._least.clear()

    def rescue(self, slot: ValueSlot) -> ValueSlot:
        """Return the slot, or a new one with its content if somebody has removed its file. Raises `TransportError`."""
        if (self.directory / slot.name).exists():
            return slot
        content = self.map(slot)
        copy = self.acquire(slot.capacity)
        np.copyto(self.map(copy)[: slot.capacity], content[: slot.capacity])
        slot.users -= 1
        self._used.discard(slot.name)
        self.used_bytes -= slot.capacity
        self._maps.drop(slot.name)
        return copy

    def map(self, slot: ValueSlot) -> Bytes:
        """Return the bytes of one of these slots. Raises `TransportError` if its file is gone."""
        found = self._maps.get(slot.name)
        if found is None:
            path = self.directory / slot.name
            try:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError as error:
                raise TransportError(
                    f"slot {slot.name} is gone: {error.strerror}", where=str(path), remedy="see who cleans /dev/shm"
                ) from error
            try:
                found = self._persist(lambda: self._mapped(fd, path, slot.capacity))
            finally:
                os.close(fd)
            self._maps.put(slot.name, found)
        return found

    def _mapped(self, fd: int, path: Path, capacity: int) -> Bytes:
        try:
            return map_shared(fd, capacity, writable=True)
        except OSError as error:
            self._maps.clear()
            raise _full(error, path, capacity, "", "or raise vm.max_map_count") from error

    def trim(self, step: int, now: float) -> None:
        """Free slots that were not needed for a while; all unused ones if memory is short."""
        if is_short(self.directory):
            self.give_back(self.free_bytes)
        elif self._period.is_over(step, now):
            for capacity, free in self._free.items():
                # The ends of the lists are used; what lies at their beginnings has waited longest.
                for _ in range(min(self._least.get(capacity, 0), len(free))):
                    self._unlink(free.popleft())
                lent = [(self.links(slot) > 1, slot) for slot in self._lent.get(capacity, ())]
                self._lent[capacity] = deque(slot for still, slot in lent if still)
                free.extendleft(slot for still, slot in lent if not still)
            self._least = {capacity: len(free) for capacity, free in self._free.items()}

    def give_back(self, nbytes: int) -> None:
        """Unlink free slots of `nbytes` in total, large ones first, and those that others have linked last."""
        limit = self.free_bytes - nbytes
        for slots in (self._free, self._lent):
            for capacity in sorted(slots, reverse=True):
                while self.free_bytes > limit and slots[capacity]:
                    self._unlink(slots[capacity].popleft())

    def _unlink(self, slot: ValueSlot) -> None:
        self.free_bytes -= slot.capacity
        self._maps.drop(slot.name)
        self._remove(slot.name)

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(f"{self._folder}/{name}")

    def close(self, *, keep: bool = False) -> None:
        """Remove the files, or `keep` them for a successor. Readers that have mapped them keep their content."""
        free = [slot.name for slots in (*self._free.values(), *self._lent.values()) for slot in slots]
        for name in [*self._used, *free] if not keep else ():
            self._remove(name)
        self._used.clear()
        self._free.clear()
        self._lent.clear()
        self._maps.clear()
        self.used_bytes = self.free_bytes = 0


def views_of(view: memoryview, sizes: Sequence[int]) -> list[Buffer]:
    """Return buffers of these sizes, which lie in `view` one after the other, each aligned to 64 bytes."""
    buffers: list[Buffer] = []
    offset = 0
    for size in sizes:
        buffers.append(view[offset : offset + size])
        offset += (size + ALIGNMENT - 1) & -ALIGNMENT
    return buffers
