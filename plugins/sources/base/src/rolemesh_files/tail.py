"""A file that another process writes: its lines from a place on, and the new location of that place after a rotation.

A file is identified by what was read of it: its first bytes, and those before the place. So a copy is the same file,
and a reused inode is another one. The inode only tells a renamed file from its copies.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import ClassVar
from zlib import crc32

import msgspec

from rolemesh_sources import SourceError

__all__ = ["HEAD_BYTES", "FilePosition", "Tail", "find", "opened", "rotated"]

HEAD_BYTES = 256
"""Number of bytes at the beginning, and of those before a place, that identify a file."""
CHUNK = 64 << 10
REMOVED = (-1, 0, "")
"""Turn of a file without a name: rotation removes the oldest one."""
MOST_BYTES = 16 << 20
"""Maximum length of a line in bytes."""


class FilePosition(msgspec.Struct, frozen=True, array_like=True):
    """Byte `at` of the file with this inode, whose first bytes have the crc32 `head`. These are `HEAD_BYTES`, or those
    before `at`. The bytes right before `at`, as many, have the crc32 `last`; 0: unknown. Inode 0 matches any file."""

    inode: int = 0
    at: int = 0
    head: int = 0
    last: int = 0


class Tail:
    """An open file."""

    MOST: ClassVar = 128
    """Maximum number of open files."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises `OSError`."""
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.path, self._inode = path, os.fstat(self._fd).st_ino
        self._head = 0, 0

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)

    @property
    def size(self) -> int:
        """Return the present number of bytes."""
        return os.fstat(self._fd).st_size

    def place(self, at: int) -> FilePosition:
        """Return the place of byte `at`."""
        return FilePosition(self._inode, at, self._head_of(at), self._last_of(at))

    def has(self, place: FilePosition, *, copied: bool = False) -> bool:
        """Return whether the place is in this file; with `copied` also if this file is a copy of the place's file."""
        if place.inode not in (0, self._inode) and not (copied and place.at):
            return False
        if self.size < place.at or self._head_of(place.at, again=True) != place.head:
            return False
        return place.last in (0, self._last_of(place.at))

    def is_before(self, place: FilePosition) -> bool:
        """Return whether this is the place's file without its end: it begins alike, and ends before the place."""
        return HEAD_BYTES <= self.size < place.at and self._head_of(self.size, again=True) == place.head

    def _head_of(self, at: int, *, again: bool = False) -> int:
        size = min(at, HEAD_BYTES)
        if again or self._head[0] != size:
            self._head = size, crc32(os.pread(self._fd, size, 0))
        return self._head[1]

    def _last_of(self, at: int) -> int:
        size = min(at, HEAD_BYTES)
        return crc32(os.pread(self._fd, size, at - size))

    @property
    def removed(self) -> bool:
        """Return whether the file has no name."""
        return not os.fstat(self._fd).st_nlink

    def is_at(self, path: Path) -> bool:
        """Return whether this file has the name `path`."""
        try:
            return path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def is_left(self, path: Path) -> bool:
        """Return whether the writer has moved on to another file of the name `path`, or has removed this one."""
        if self.is_at(path):
            return False
        return _size(path) != 0 if self.removed else bool(self.later(path))

    def later(self, path: Path) -> list[os.stat_result]:
        """Return the files that were written after this one, in the order of their last write: later rotated files, and
        the one at `path`.

        The names decide between files of the same time. Empty files are left out.
        """
        found = {name: stat for name, stat in _beside(path).items() if name == path.name or _is_rotated(name, path)}
        names = [_turn(name, path) for name, stat in found.items() if stat.st_ino == self._inode]
        ended = os.fstat(self._fd).st_mtime_ns, min(names, default=REMOVED)
        turns = [((stat.st_mtime_ns, _turn(name, path)), stat) for name, stat in found.items()]
        later = [each for each in turns if each[0] > ended and each[1].st_size and each[1].st_ino != self._inode]
        return [stat for _, stat in sorted(later, key=lambda each: each[0])]

    def lines(self, at: int, most: int, *, whole: bool) -> tuple[list[tuple[int, bytes]], int]:
        """Return at most `most` lines from byte `at` on, each with its first byte, and the byte after the last one.
        With `whole`, the text after the last newline counts as a line."""
        size = CHUNK
        while True:
            data = os.pread(self._fd, size, at)
            lines = data.split(b"\n", most)
            rest = lines.pop()
            if whole and rest and len(lines) < most and len(data) < size:
                lines.append(rest)
                rest = b""
            if lines or len(data) < size:
                break
            if size > MOST_BYTES:
                what, remedy = f"the line at byte {at} is longer than {MOST_BYTES} bytes", "is this a file of lines?"
                raise SourceError(what, where=str(self.path), remedy=remedy)
            size *= 4
        begins, found = at, []
        for line in lines:
            found.append((begins, line))
            begins += len(line) + 1
        return found, at + len(data) - len(rest)


def find(path: Path, place: FilePosition) -> Tail | None:
    """Return the file that has the place: the one at `path`, a renamed one in its folder, or a copy at `path` or of a
    rotated file."""
    if (tail := opened(path, place)) is not None or not place.inode:
        return tail
    beside = _beside(path)
    rotated_names = [name for name in beside if _is_rotated(name, path)]
    renamed = ((name, False) for name, stat in beside.items() if stat.st_ino == place.inode)
    copies = ((name, True) for name in (path.name, *rotated_names))
    found = (opened(path.with_name(name), place, copied=copied) for name, copied in chain(renamed, copies))
    tail = next(filter(None, found), None)
    if tail is None and not place.at and not rotated_names:  # nothing was read of it
        return opened(path, FilePosition())
    return tail


def _beside(path: Path) -> dict[str, os.stat_result]:
    """Return the files in the folder of `path` by name, that one included, at one moment. Because files may be renamed
    meanwhile, two looks must agree."""
    before: dict[str, int] | None = None
    while True:
        found: dict[str, os.stat_result] = {}
        with suppress(FileNotFoundError):
            for each in os.scandir(path.parent):
                with suppress(FileNotFoundError):
                    if each.is_file():
                        found[each.name] = os.stat(each.path)
        inodes = {name: stat.st_ino for name, stat in sorted(found.items())}
        if inodes == before:
            return found
        before = inodes


def _is_rotated(name: str, path: Path) -> bool:
    """Return whether the file at `path` was renamed or copied to `name`: ``a.jsonl.1``, ``a.jsonl-2026-11-24``."""
    return re.match(re.escape(path.name) + "[-._~]", name) is not None


def _turn(name: str, path: Path) -> tuple[int, int, str]:
    """Return what orders files of the same time: those with dates first, then by falling numbers, then `path`."""
    suffix = name[len(path.name) + 1 :]
    if re.fullmatch("[0-9]{1,5}", suffix):
        return 1, -int(suffix), ""
    return (0, 0, suffix) if suffix else (2, 0, "")


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def rotated(path: Path) -> bool:
    """Return whether there are rotated versions of the file at `path`."""
    return any(_is_rotated(name, path) for name in _beside(path))


def opened(path: Path, place: FilePosition, *, copied: bool = False) -> Tail | None:
    """Return the file at `path` if it has the place; see `Tail.has`. Raises `SourceError` if nobody may read it."""
    try:
        tail = Tail(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        remedy = "let the job's user read it"
        raise SourceError(f"cannot be read: {error.strerror}", where=str(path), remedy=remedy) from error
    if tail.has(place, copied=copied):
        return tail
    tail.close()
    return None
