"""Shared-memory slots: named files on tmpfs, kept warm, written by one rank and read by its consumers.

A slot is written with one copy and read without any. First touch costs about eight times a warm copy, so a slot
that its consumers have released is used again, and unlinked when it has not been needed for a while. Who hands on what
lies in another's slot links the file under a name of its own: a file is written to only while it has no other name.
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

from rolemesh_durable.dataplane.codec import Buffer
from rolemesh_durable.dataplane.mapping import Bytes, MapCache, map_shared
from rolemesh_durable.transports import TransportError

__all__ = ["ALIGNMENT", "NoSharedMemory", "Period", "Persist", "Slot", "SlotPool", "aligned_size", "capacity_of",
           "is_full", "is_short", "named", "new_file", "views_of"]  # fmt: skip

ALIGNMENT: Final = 64
MAPS: Final = 4096
"""Files that a rank has mapped at once, at most, as a producer and again as a consumer: the kernel allows 65,530 maps
in a process, and what is retained can be more slots than that."""
RESERVE: Final = 4 << 20
LEFT: Final = 32
"""Values leave so many bytes free, and this part of the memory, if that is more: a rank that starts again needs some
for its log and its snapshot, and others may wait for it with all that they could get."""
SCARCE: Final = 8
"""Memory is short when less than this part of it is free, beside the reserve: then nothing is kept warm."""
_PAGE: Final = 4096
_FULL: Final = frozenset((errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EMFILE, errno.ENFILE))
_PERIOD_S, _PERIOD_STEPS = 60.0, 16

Persist: TypeAlias = Callable[[Callable[[], Any]], Any]
"""Calls what makes a file until it does not raise `NoSharedMemory`, as long as there is something to wait for."""


class NoSharedMemory(TransportError):
    """There is no room for a file of `nbytes`."""

    nbytes = 0


def aligned_size(sizes: Sequence[int]) -> int:
    """Bytes that buffers of these sizes take, each aligned to 64."""
    return sum((size + ALIGNMENT - 1) & -ALIGNMENT for size in sizes)


def capacity_of(nbytes: int) -> int:
    """Bytes of the slot for `nbytes`: whole pages, in eight classes from each power of two to the next.

    So at most an eighth is unused, beside a page, and values of slightly different size fit the same slots.
    """
    step = max(_PAGE, 1 << max(0, (nbytes - 1).bit_length() - 4))
    return max(1, -(-nbytes // step)) * step


def named(directory: str | Path, prefix: str) -> list[Path]:
    """The files whose names begin so, in order. A node's ranks share a folder, and a thousand of them look at it."""
    try:
        return [Path(directory, name) for name in sorted(os.listdir(directory)) if name.startswith(prefix)]
    except FileNotFoundError:
        return []


def is_full(error: BaseException | None) -> bool:
    """Whether the system had no room for a file or a map, or no descriptor: there may be some later."""
    return isinstance(error, OSError) and error.errno in _FULL


def is_short(directory: Path) -> bool:
    """Whether the memory that `directory` lies in is nearly used up."""
    try:
        at = os.statvfs(directory)
    except OSError:
        return False
    return at.f_bavail * at.f_frsize < reserve(at) + at.f_blocks * at.f_frsize // SCARCE


def reserve(at: os.statvfs_result) -> int:
    """Bytes that values leave free in a file system."""
    return max(RESERVE, at.f_blocks * at.f_frsize // LEFT)


def new_file(path: Path, size: int, what: str, remedy: str, *, spare: bool = True) -> Bytes:
    """Make a file of `size` bytes that are all there, and map it. Raises `NoSharedMemory` if there is no room.

    With `spare` the reserve stays.
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
    """Tells when a while is over: a minute, and at least 16 steps, so that slow steps are not taken for idle ones."""

    def __init__(self) -> None:
        self._step, self._ends = 0, 0.0

    def is_over(self, step: int, now: float) -> bool:
        """Whether it is at `step` and `now` (monotonic, in seconds); the next one begins then."""
        if now < self._ends or 0 <= step - self._step < _PERIOD_STEPS:
            return False
        self._step, self._ends = step, now + _PERIOD_S
        return True


class Slot:
    """`capacity` bytes in the file `name` of the directory of `pool`."""

    __slots__ = ("_pool", "capacity", "linked", "name")

    def __init__(self, name: str, capacity: int, pool: SlotPool, linked: tuple[str, int] | None = None) -> None:
        """`linked`: the file is another's too; its name there, and its inode."""
        self.name, self.capacity, self._pool, self.linked = name, capacity, pool, linked

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
        """Read-only views of what lies here from `offset` on."""
        return views_of(self._pool.map(self).data.toreadonly()[offset:], sizes)


class SlotPool:
    """The slots that one rank writes, as files ``<prefix>-<n>`` in `directory` (made with mode 0700)."""

    def __init__(self, directory: str | Path, prefix: str) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._persist: Persist = lambda make: make()
        self.used_bytes = self.free_bytes = 0
        """What the slots take that are in use, and those that wait to be used again."""
        self._prefix, self._folder = prefix, str(self.directory)
        self._count = 0
        self._used: set[str] = set()
        self._free: dict[int, deque[Slot]] = {}
        self._lent: dict[int, deque[Slot]] = {}
        """Free here, but when they were to be used again, somebody else had linked them; the oldest first."""
        self._names: dict[tuple[str, int], list[str]] = {}
        """By name and inode of a file that was linked before: names that it has had here. Whoever reads it has it
        mapped under them."""
        self._least: dict[int, int] = {}
        """By capacity: how many slots have been free all through the present period."""
        self._maps = MapCache(MAPS)
        self._period = Period()

    def await_memory(self, persist: Persist) -> None:
        """Make slots by `persist(make)` from now on, which may wait for memory."""
        self._persist = persist

    @property
    def free(self) -> int:
        """Slots that wait to be used again."""
        return sum(map(len, (*self._free.values(), *self._lent.values())))

    def acquire(self, nbytes: int) -> Slot:
        """A free slot for `nbytes` of which at most a fifth is left unused, or a new one. Raises `NoSharedMemory`."""
        capacity = wanted = capacity_of(nbytes)
        slot = None
        while self.free_bytes and slot is None and capacity <= wanted + (wanted >> 2):
            slot = self._again(capacity)
            capacity = capacity_of(capacity + 1)
        return self._use(slot or self._new(wanted))

    def _use(self, slot: Slot) -> Slot:
        self.used_bytes += slot.capacity
        self._used.add(slot.name)
        return slot

    def _again(self, capacity: int) -> Slot | None:
        """A free slot that has no other name, the one that was used last."""
        free, lent = self._free.get(capacity), self._lent.get(capacity)
        while free:
            slot = free.pop()
            self._least[capacity] = min(self._least.get(capacity, 0), len(free))
            if (links := self._links(slot)) == 1:
                self.free_bytes -= capacity
                return slot
            if links:
                self._lent.setdefault(capacity, deque()).append(slot)
            else:
                self.free_bytes -= capacity
        if lent and self._links(lent[0]) < 2:
            slot = lent.popleft()
            self.free_bytes -= capacity
            return slot if self._links(slot) else None
        return None

    def _links(self, slot: Slot) -> int:
        """How many names its file has; 0 if somebody has removed it."""
        try:
            return os.stat(f"{self._folder}/{slot.name}").st_nlink
        except FileNotFoundError:
            return 0

    def link(self, name: str, inode: int, mapped: Bytes) -> Slot | None:
        """The file `name` of another rank, which is `mapped` here, under a name of this one's, as if it had been
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
        return self._use(Slot(own, len(mapped), self, (name, inode)))

    def _next_name(self) -> str:
        self._count += 1
        return f"{self._prefix}-{self._count}"

    def _new(self, capacity: int) -> Slot:
        try:
            return self._make(capacity)
        except NoSharedMemory:
            self.give_back(self.free_bytes)
            slot: Slot = self._persist(lambda: self._make(capacity))
            return slot

    def _make(self, capacity: int) -> Slot:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = self._next_name()
        mapped = new_file(self.directory / name, capacity, "", "lower the edge's credits, or send smaller values")
        self._maps.put(name, mapped)
        return Slot(name, capacity, self)

    def adopt(self, name: str) -> Slot | None:
        """The slot `name` of a former generation, as if it had been acquired here; None if its file is gone."""
        try:
            found = os.lstat(self.directory / name)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        linked = (name, found.st_ino) if found.st_nlink > 1 else None
        return self._use(Slot(name, found.st_size, self, linked))

    def release(self, slot: Slot) -> None:
        """Nobody needs the content any more."""
        if slot.name in self._used:
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
                left = deque(slot for slot in free if self._links(slot))
                self.free_bytes -= capacity * (len(free) - len(left))
                slots[capacity] = left
        self._least.clear()

    def rescue(self, slot: Slot) -> Slot:
        """The slot, or a new one with what it holds if somebody has removed its file. Raises `TransportError`."""
        if (self.directory / slot.name).exists():
            return slot
        content = self.map(slot)
        copy = self.acquire(slot.capacity)
        np.copyto(self.map(copy)[: slot.capacity], content[: slot.capacity])
        self._used.discard(slot.name)
        self.used_bytes -= slot.capacity
        self._maps.drop(slot.name)
        return copy

    def map(self, slot: Slot) -> Bytes:
        """The bytes of one of these slots. Raises `TransportError` if its file is gone."""
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
        """Give back what has not been needed for a while; everything free, where memory is short."""
        if is_short(self.directory):
            self.give_back(self.free_bytes)
        elif self._period.is_over(step, now):
            for capacity, free in self._free.items():
                # The ends of the lists are used; what lies at their beginnings has waited longest.
                for _ in range(min(self._least.get(capacity, 0), len(free))):
                    self._unlink(free.popleft())
                lent = [(self._links(slot) > 1, slot) for slot in self._lent.get(capacity, ())]
                self._lent[capacity] = deque(slot for still, slot in lent if still)
                free.extendleft(slot for still, slot in lent if not still)
            self._least = {capacity: len(free) for capacity, free in self._free.items()}

    def give_back(self, nbytes: int) -> None:
        """Unlink free slots that take `nbytes` together, large ones first, and last those that others have linked."""
        limit = self.free_bytes - nbytes
        for slots in (self._free, self._lent):
            for capacity in sorted(slots, reverse=True):
                while self.free_bytes > limit and slots[capacity]:
                    self._unlink(slots[capacity].popleft())

    def _unlink(self, slot: Slot) -> None:
        self.free_bytes -= slot.capacity
        self._maps.drop(slot.name)
        self._remove(slot.name)

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(f"{self._folder}/{name}")

    def close(self, *, keep: bool = False) -> None:
        """Remove the files, or `keep` them for a successor. Readers that have mapped them keep what they see."""
        free = [slot.name for slots in (*self._free.values(), *self._lent.values()) for slot in slots]
        for name in [*self._used, *free] if not keep else ():
            self._remove(name)
        self._used.clear()
        self._free.clear()
        self._lent.clear()
        self._maps.clear()
        self.used_bytes = self.free_bytes = 0


def views_of(view: memoryview, sizes: Sequence[int]) -> list[Buffer]:
    """Buffers of these sizes, which lie in `view` one after the other, each aligned to 64 bytes."""
    buffers: list[Buffer] = []
    offset = 0
    for size in sizes:
        buffers.append(view[offset : offset + size])
        offset += (size + ALIGNMENT - 1) & -ALIGNMENT
    return buffers
