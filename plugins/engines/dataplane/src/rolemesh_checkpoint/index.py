"""The index of a rank's snapshots in shared memory: a page of entries, each of which is whole or not there.

An entry is written by the rank alone; its checksum is written last, so a torn one does not count. The bytes behind it
are switches of others: whether it waits for being persisted, and who else reads it now.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from rolemesh_checkpoint.layout import SnapshotError

__all__ = ["HOLDERS", "STATELESS", "Entry", "Index"]

STATELESS = -1
"""Slot number of a snapshot without state."""
HOLDERS = ("persister", "replicas")

_BYTES = 4096
_MAGIC = b"RMSNAP01"
_SERIAL_AT = 8
_REFUSED_AT = 16
"""Offset of a number: one more than the first step for which there was no room; 0 if the newest snapshot found room."""
_BODY = struct.Struct("<qqqqq")
_RECORD = struct.Struct("<qqqqqQB2s13x")
_CHECK = struct.Struct("<Q")
_ROOM = _RECORD.size
_CHECK_AT = _BODY.size
_PIN_AT = _CHECK_AT + _CHECK.size
_HOLD_AT = _PIN_AT + 1
_FIRST, _LAST = _ROOM, 9 * _ROOM
"""Offsets of eight places: two newest, two that wait to be persisted, those that are held, and the one being
written."""
_NOBODY = bytes(len(HOLDERS))
_VALID = 1 << 32
"""Bit in the checksum of every entry, so that an empty place is no entry."""


class Entry(NamedTuple):
    """A complete snapshot. `serial` grows with each written one."""

    step: int
    log: int
    slot: int
    size: int
    serial: int
    place: int
    pinned: bool
    held: bool

    @property
    def kept(self) -> bool:
        """Return whether it must not be overwritten."""
        return self.pinned or self.held


class Index:
    """The index in `path`. A missing file is an empty index."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None
        self._file = -1, -1

    def entries(self) -> list[Entry]:
        """Return the complete entries, in no order."""
        mapped = self._mapped(create=False)
        return _entries(mapped) if mapped is not None else []

    @property
    def refused(self) -> int:
        """Return the first step for which there was no room, since the last one that found room; -1 for none."""
        mapped = self._mapped(create=False)
        return int(_CHECK.unpack_from(mapped, _REFUSED_AT)[0]) - 1 if mapped is not None else -1

    def refuse(self, step: int) -> None:
        """Record that there is no room for a snapshot of `step`. Raises `OSError` if there is none for the index
        either."""
        mapped = self._mapped(create=True)
        assert mapped is not None
        if self.refused < 0:
            _CHECK.pack_into(mapped, _REFUSED_AT, step + 1)

    def find(self, step: int) -> Entry | None:
        """Return the entry of `step`, or None; the newer one if a kill has left two."""
        found = [entry for entry in self.entries() if entry.step == step]
        return max(found, key=lambda entry: entry.serial) if found else None

    def add(self, step: int, log: int, slot: int, size: int, *, persist: bool, kept: int) -> None:
        """Write an entry, complete at once. Then keep only the newest `kept` entries and those that must stay."""
        mapped = self._mapped(create=True)
        assert mapped is not None
        entries = _entries(mapped)
        taken = {entry.place for entry in entries}
        place = next((place for place in range(_FIRST, _LAST, _ROOM) if place not in taken), None)
        if place is None:
            raise SnapshotError(f"{len(entries)} snapshots are being kept at once", where=str(self._path))
        serial = _CHECK.unpack_from(mapped, _SERIAL_AT)[0] % (1 << 62)  # greater ones are damage
        _CHECK.pack_into(mapped, _SERIAL_AT, serial + 1)
        body = _BODY.pack(step, log, slot, size, serial)
        mapped[place : place + _CHECK_AT] = body
        mapped[place + _PIN_AT] = persist
        mapped[place + _HOLD_AT : place + _HOLD_AT + len(_NOBODY)] = _NOBODY
        mapped[place + _CHECK_AT : place + _PIN_AT] = _CHECK.pack(zlib.crc32(body) | _VALID)
        _CHECK.pack_into(mapped, _REFUSED_AT, 0)
        others = sorted((entry for entry in entries if entry.step != step), reverse=True)
        for entry in entries:
            if entry.step == step:
                self.remove(entry)
        for entry in others[kept - 1 :]:
            if not entry.kept:
                self.remove(entry)

    def remove(self, entry: Entry) -> None:
        """Remove an entry: its snapshot no longer exists."""
        mapped = self._map
        if mapped is None:
            return  # the file is gone, and the snapshot with it
        mapped[entry.place + _CHECK_AT : entry.place + _PIN_AT] = _CHECK.pack(0)

    def pin(self, entry: Entry, on: bool) -> None:
        """Set whether the entry waits to be persisted."""
        if self._map is not None:
            self._map[entry.place + _PIN_AT] = on

    def hold(self, entry: Entry, holder: int, on: bool) -> None:
        """Set whether `holder` reads the entry's slot."""
        if self._map is not None:
            self._map[entry.place + _HOLD_AT + holder] = on

    def close(self) -> None:
        """Forget the map."""
        self._map = None

    @property
    def lost(self) -> bool:
        """Return whether the mapped file is no longer the one at its path, because somebody has removed it."""
        if self._map is None:
            return False
        try:
            at = os.stat(self._path)
        except OSError:
            return True
        return (at.st_dev, at.st_ino) != self._file

    def _mapped(self, *, create: bool) -> mmap.mmap | None:
        if self.lost:
            self._map = None
        return self._map or self._open(create=create)

    def _open(self, *, create: bool) -> mmap.mmap | None:
        if create:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
        except FileNotFoundError:
            return None
        try:
            at = os.fstat(fd)
            self._file = at.st_dev, at.st_ino
            if at.st_size < _BYTES:
                if not create:
                    return None
                os.posix_fallocate(fd, 0, _BYTES)
            mapped = mmap.mmap(fd, _BYTES)
        finally:
            os.close(fd)
        found = mapped[: len(_MAGIC)]
        if found != _MAGIC:
            # Zeros where the magic is yet to come: its rank is making the file just now, or was killed while it did.
            if any(byte not in (0, wanted) for byte, wanted in zip(found, _MAGIC, strict=True)):
                raise SnapshotError("this is no index of snapshots", where=str(self._path))
            if not create:
                return None
            mapped[: len(_MAGIC)] = _MAGIC
        self._map = mapped
        return mapped


def _entries(mapped: mmap.mmap) -> list[Entry]:
    raw = mapped[_FIRST:_LAST]
    found, place = [], _FIRST
    for *body, check, pinned, holders in _RECORD.iter_unpack(raw):
        if check and check == zlib.crc32(raw[place - _FIRST : place - _FIRST + _CHECK_AT]) | _VALID:
            step, log, slot, size, serial = body
            found.append(Entry(step, log, slot, size, serial, place, pinned != 0, holders != _NOBODY))
        place += _ROOM
    return found
