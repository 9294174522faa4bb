"""Snapshots of a rank in shared memory: a few slot files, and an index that says which of them are complete.

A slot ``snap-<role>-<rank>-<n>`` is a safetensors file, written with one copy into a map that stays warm. The index
``snap-<role>-<rank>.index`` is changed last, so a process that is killed at any moment leaves the snapshots before.
The rank writes; its agent, and the rank's successor after its death, read.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rolemesh.api.workload import State
from rolemesh_checkpoint.index import HOLDERS, STATELESS, Entry, Index
from rolemesh_checkpoint.layout import Block, BlockLayout, Flat, SnapshotError, flatten
from rolemesh_checkpoint.page_lock import on_gpu, page_lock, page_unlock
from rolemesh_checkpoint.persisting import outlasting
from rolemesh_checkpoint.reading import StateFile, map_file
from rolemesh_dataplane.shm import named

__all__ = ["MemorySnapshot", "MemorySnapshots", "NoRoom", "SnapshotFile"]

KEPT = 2
"""Number of complete snapshots that a rank always keeps in memory, beside those that are held."""


class NoRoom(SnapshotError):
    """There is no shared memory for a snapshot now; those that are complete are still there."""


class MemorySnapshot(NamedTuple):
    """The state of a rank after a step; `state` is None for a stateless rank. The caller owns the arrays and may write
    to them."""

    state: State | None
    log: int


class SnapshotFile(NamedTuple):
    """A complete snapshot as a file: its first `size` bytes. `path` is None for a stateless rank."""

    path: Path | None
    size: int
    log: int
    serial: int


class MemorySnapshots:
    """The snapshots of one rank in `directory`. Nothing is created there before the first `write`."""

    def __init__(self, directory: str | Path, role: str, rank: int) -> None:
        self._directory = Path(directory)
        self._rank = rank
        self._prefix = f"snap-{role}-{rank}"
        self._index = Index(self._directory / f"{self._prefix}.index")
        self._slots: dict[int, _SlotFile] = {}
        self._layout: BlockLayout | None = None
        self._lent: dict[int, weakref.ref[mmap.mmap]] = {}

    # ------------------------------------------------------------------------------------------------ everybody

    def steps(self) -> tuple[int, ...]:
        """Return the steps of the complete snapshots, ascending."""
        return tuple(sorted({entry.step for entry in self._index.entries()}))

    def read(self, step: int) -> MemorySnapshot:
        """Return the snapshot of `step` without a copy. Writes to its arrays are visible only in this process.

        A slot is not reused while this process still refers to a part of it. Raises `SnapshotError`.
        """
        entry = self._find(step)
        if entry.slot == STATELESS:
            return MemorySnapshot(None, entry.log)
        path = self._path(entry.slot)
        try:
            mapped = map_file(path.parent, path.name)
        except (OSError, ValueError) as error:
            raise SnapshotError(f"the snapshot of step {step} cannot be read: {error}", where=str(path)) from error
        self._lent[entry.slot] = weakref.ref(mapped)
        return MemorySnapshot(StateFile(mapped, str(path)).state(), entry.log)

    def intact(self, step: int) -> bool:
        """Return whether the snapshot of `step`, or a later one, exists with its file."""
        newest = max(self._index.entries(), key=lambda entry: entry.serial, default=None)
        if newest is None or newest.step < step:
            return False
        return newest.slot == STATELESS or self._path(newest.slot).exists()

    def image(self, step: int) -> SnapshotFile | None:
        """Return the image of the snapshot of `step`, or None. Compare `serial` afterwards, because it may have been
        replaced."""
        entry = self._index.find(step)
        if entry is None:
            return None
        path = self._path(entry.slot) if entry.slot != STATELESS else None
        return SnapshotFile(path, entry.size, entry.log, entry.serial)

    def close(self) -> None:
        """Forget the maps. The files stay."""
        self._index.close()
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()

    # ------------------------------------------------------------------------------------------------- the rank

    def write(self, step: int, state: State | None, *, log: int, persist: bool) -> None:
        """Write the snapshot of `step`, and pin it for the agent if it is to be persisted.

        Afterwards the two newest snapshots exist, and those that are pinned or held. It never overwrites the newest
        complete one, or one that is pinned or held; but if two wait for a slow disk, one of them is unpinned. Raises
        `TypeError` for a state that cannot be stored, and `NoRoom` if there is no memory for it: then the old snapshots
        still exist, and `refused` returns the step until there is room.
        """
        self._forget_lost()
        if persist:
            self._make_room()
        try:
            slot, size = (STATELESS, 0) if state is None else self._fill(step, flatten(state, self._rank), log)
            self._index.add(step, log, slot, size, persist=persist, kept=KEPT)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._index.refuse(step)
            raise _no_room(error, str(self._directory / self._prefix), 1) from error
        except NoRoom:
            with contextlib.suppress(OSError):
                self._index.refuse(step)
            raise

    @property
    def refused(self) -> int:
        """Return the first step for which there was no room, if there still is none; else -1."""
        return self._index.refused

    def drop_after(self, step: int) -> None:
        """Forget the snapshots after `step`."""
        for entry in self._index.entries():
            if entry.step > step:
                self._index.remove(entry)

    def clear(self) -> None:
        """Forget all snapshots. The slots remain mapped for the next ones."""
        self.drop_after(-(1 << 62))

    # ------------------------------------------------------------------------------------------------ its agent

    def pinned(self) -> tuple[int, ...]:
        """Return the steps of the snapshots that wait to be persisted, ascending."""
        return tuple(sorted(entry.step for entry in self._index.entries() if entry.pinned))

    def pin(self, step: int) -> None:
        """Pin the snapshot of `step` after all, because its part of the checkpoint may have been lost."""
        entry = self._index.find(step)
        if entry is not None:
            self._index.pin(entry, True)

    def unpin(self, step: int) -> None:
        """The snapshot of `step` is persisted, or need not be."""
        entry = self._index.find(step)
        if entry is not None:
            self._index.pin(entry, False)

    def hold(self, step: int, holder: str) -> bool:
        """Keep the snapshot of `step` until `release`; return False if it is gone. `holder` is one of
        `index.HOLDERS`."""
        entry = self._index.find(step)
        if entry is None:
            return False
        self._index.hold(entry, HOLDERS.index(holder), True)
        now = self._index.find(step)
        return now is not None and now.serial == entry.serial

    def release(self, step: int, holder: str) -> None:
        """Release a snapshot that `hold` keeps."""
        entry = self._index.find(step)
        if entry is not None:
            self._index.hold(entry, HOLDERS.index(holder), False)

    def adopt(self, step: int, source: Path | None, size: int, log: int) -> None:
        """Take a file with the image of another agent's snapshot as if it had been written here. Moves `source`.

        Raises `OSError`.
        """
        slot = STATELESS
        if source is not None:
            self._slots.clear()  # others may have written here since
            slot, used = self._free_slot()
            if used is not None:
                self._index.remove(used)
            self._drop_slot(slot)
            os.replace(source, self._path(slot))
        self._index.add(step, log, slot, size, persist=False, kept=KEPT)

    # -------------------------------------------------------------------------------------------------- within

    def _forget_lost(self) -> None:
        """Recreate files that somebody has removed. Their content is lost."""
        if self._index.lost:
            self.close()
        for number in [number for number, slot in self._slots.items() if slot.lost]:
            for entry in self._index.entries():
                if entry.slot == number:
                    self._index.remove(entry)
            self._drop_slot(number)

    def _make_room(self) -> None:
        """Unpin all but one of the snapshots that wait for a slow disk, or for slower ranks."""
        waiting = [entry for entry in self._index.entries() if entry.pinned and not entry.held]
        stays = outlasting([entry.step for entry in waiting])
        for entry in waiting:
            if entry.step != stays:
                self._index.pin(entry, False)

    def _find(self, step: int) -> Entry:
        entry = self._index.find(step)
        if entry is None:
            raise SnapshotError(
                f"there is no snapshot of step {step}, only of {list(self.steps())}",
                where=str(self._directory / self._prefix),
            )
        return entry

    def _path(self, slot: int) -> Path:
        return self._directory / f"{self._prefix}-{slot}"

    def _free_slot(self) -> tuple[int, Entry | None]:
        """Return an unused slot; else that of the oldest snapshot that may go (forget it first); else a new one."""
        entries = sorted(self._index.entries(), key=lambda entry: entry.step)
        used = {entry.slot for entry in entries}
        present = self._present()
        for slot in present:
            if slot not in used and not self._is_lent(slot):
                return slot, None
        if len(present) >= KEPT:
            for entry in entries[:-1]:
                if entry.slot != STATELESS and not entry.kept and not self._is_lent(entry.slot):
                    return entry.slot, entry
        for slot in present:
            if slot not in used:
                self._drop_slot(slot)  # lent: whoever reads it keeps what was mapped
        return next(slot for slot in range(len(present) + 1) if slot not in present or slot not in used), None

    def _present(self) -> list[int]:
        if not self._slots:
            for path in named(self._directory, f"{self._prefix}-"):
                number = path.name.removeprefix(f"{self._prefix}-")
                if number.isdigit():
                    self._slots[int(number)] = _SlotFile(path)
        return sorted(self._slots)

    def _is_lent(self, slot: int) -> bool:
        reference = self._lent.get(slot)
        return reference is not None and reference() is not None

    def _drop_slot(self, slot: int) -> None:
        known = self._slots.pop(slot, None)
        if known is not None:
            known.close()
        self._lent.pop(slot, None)
        self._path(slot).unlink(missing_ok=True)

    def _fill(self, step: int, flat: Flat, log: int) -> tuple[int, int]:
        number, used = self._free_slot()
        head = BlockLayout.head({"step": step, "log": log, "tree": flat.tree})
        key = BlockLayout.key_of(flat.blocks)
        layout = self._layout
        if layout is None or len(head) > layout.reserved or layout.key != key:
            layout = self._layout = BlockLayout(key, flat.blocks, len(head))
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = _SlotFile(self._path(number))
        slot.reserve(layout.size)
        if used is not None:
            self._index.remove(used)  # only now that there is room for what replaces it
        slot.write(layout, head, flat.blocks)
        return number, layout.size


class _SlotFile:
    """A slot file and its map, which is kept while it is large enough."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._size = 0
        self._capacity = 0
        self._array: np.ndarray[Any, np.dtype[np.uint8]] | None = None
        self._locked: bool | None = None
        """Whether the driver has page-locked the map; None before the first attempt."""

    @property
    def lost(self) -> bool:
        """Return whether somebody has removed the file."""
        return self._fd >= 0 and os.fstat(self._fd).st_nlink == 0

    def reserve(self, size: int) -> None:
        """Make room for `size` bytes, without touching the content. Raises `NoRoom`."""
        if min(self._capacity, self._size) < size:
            self._grow(size)

    def write(self, layout: BlockLayout, head: bytes, blocks: list[Block]) -> None:
        """Write the blocks into the room that `reserve` made."""
        if self._size > layout.size:
            os.ftruncate(self._fd, layout.size)
            self._size = layout.size
        array = self._array
        assert array is not None
        header = layout.header(head)
        if self._locked is None and any(on_gpu(block.source) for block in blocks):
            self._locked = page_lock(array)
        array[: len(header)] = np.frombuffer(header, np.uint8)
        for block, start in zip(blocks, layout.starts, strict=True):
            if block.nbytes:
                at = layout.data + start
                _copy(array[at : at + block.nbytes], block)

    def _grow(self, size: int) -> None:
        before = 0
        try:
            if self._fd < 0:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            before = os.fstat(self._fd).st_size
            os.posix_fallocate(self._fd, 0, size)
            self._size = max(size, before)
            if self._capacity < size:
                self._unmap()
                mapped = mmap.mmap(self._fd, self._size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
                self._array, self._capacity = np.frombuffer(mapped, np.uint8), self._size
        except OSError as error:
            self._size = 0
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, before)  # what was allocated in part goes back
            raise _no_room(error, str(self.path), size) from error

    def _unmap(self) -> None:
        if self._locked and self._array is not None:
            page_unlock(self._array)
        self._array, self._capacity, self._locked = None, 0, None

    def close(self) -> None:
        self._unmap()
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1


def _no_room(error: OSError, where: str, size: int) -> NoRoom:
    return NoRoom(
        f"no shared memory for a snapshot of {math.ceil(size / 2**20)} MiB: {error.strerror}",
        where=where,
        remedy="give /dev/shm room for three times a rank's state (docker --shm-size), or disable snapshots",
    )


def _copy(target: np.ndarray[Any, np.dtype[np.uint8]], block: Block) -> None:
    """Copy in one thread: more of them would spin longer than they copy."""
    source = block.source
    if isinstance(source, np.ndarray):
        np.copyto(target.view(source.dtype).reshape(source.shape), source)
        return
    import torch

    if source.device.type == "cpu" and source.is_contiguous() and not (source.is_conj() or source.is_neg()):
        np.copyto(target, source.reshape(-1).view(torch.uint8).numpy())
    else:
        torch.from_numpy(target).view(source.dtype).reshape(source.shape).copy_(source)
