"""One file that somebody writes to: its lines from a place on, and where that place is when the file has moved.

A file is known by its inode and by its first bytes, as far as they were read: one that is renamed keeps the inode, one
that is copied and truncated (logrotate's ``copytruncate``) leaves its first bytes in the copy, and an inode that is
used again has other ones.
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

from rolemesh_durable.sources import SourceError

__all__ = ["Place", "Tail", "find"]

HEAD_BYTES = 256
CHUNK = 64 << 10
MOST_BYTES = 16 << 20
"""The longest line."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Byte `at` of the file with this inode, whose first bytes (`HEAD_BYTES`, or those before `at`) have the crc32
    `head`. Inode 0: of whatever file is there."""

    inode: int = 0
    at: int = 0
    head: int = 0


class Tail:
    """An open file."""

    MOST: ClassVar = 128
    """How many are kept open."""

    def __init__(self, path: Path) -> None:
        """Raises `OSError`."""
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._path, self._inode = path, os.fstat(self._fd).st_ino
        self._head = 0, 0

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)

    @property
    def size(self) -> int:
        """Bytes that it has now."""
        return os.fstat(self._fd).st_size

    def place(self, at: int) -> Place:
        """The place `at`."""
        return Place(self._inode, at, self._head_of(at))

    def has(self, place: Place, *, copied: bool = False) -> bool:
        """Whether the place is in this file; `copied`: or in the one that this is a copy of."""
        if place.inode not in (0, self._inode) and not (copied and place.at):
            return False
        return self.size >= place.at and self._head_of(place.at, again=True) == place.head

    def _head_of(self, at: int, *, again: bool = False) -> int:
        size = min(at, HEAD_BYTES)
        if again or self._head[0] != size:
            self._head = size, crc32(os.pread(self._fd, size, 0))
        return self._head[1]

    def is_left(self, path: Path) -> bool:
        """Whether the writer has gone on to another file of the name `path`, or has removed this one."""
        try:
            now = path.stat()
        except FileNotFoundError:
            return not os.fstat(self._fd).st_nlink
        return now.st_ino != self._inode and now.st_size > 0

    def successor(self, path: Path) -> int | None:
        """The inode of the file that was begun after this one, which is at `path` or was rotated in its turn: of those
        that were written to later the one whose last time was first. None if there is none."""
        ended = os.fstat(self._fd).st_mtime_ns
        later = [each.stat() for each in _rotated(path) if each.inode() != self._inode]
        later = [each for each in later if each.st_mtime_ns > ended]
        with suppress(FileNotFoundError):
            later.append(path.stat())
        return min(later, key=lambda each: each.st_mtime_ns).st_ino if later else None

    def lines(self, at: int, most: int, *, whole: bool) -> tuple[list[tuple[int, bytes]], int]:
        """At most so many lines from byte `at` on, each with where it begins, and the byte behind them. `whole`: what
        is left behind the last end of a line is one, too."""
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
                raise SourceError(what, where=str(self._path), remedy=remedy)
            size *= 4
        begins, found = at, []
        for line in lines:
            found.append((begins, line))
            begins += len(line) + 1
        return found, at + len(data) - len(rest)


def find(path: Path, place: Place) -> Tail | None:
    """The file that has the place: the one at `path`, or what it was renamed or copied to in its folder."""
    if (tail := _opened(path, place)) is not None or not place.inode:
        return tail
    renamed = ((each, False) for each in _beside(path) if each.inode() == place.inode and each.name != path.name)
    copies = ((each, True) for each in _rotated(path) if each.inode() != place.inode)
    found = (_opened(Path(each.path), place, copied=copied) for each, copied in chain(renamed, copies))
    return next(filter(None, found), None)


def _beside(path: Path) -> list[os.DirEntry[str]]:
    try:
        return sorted((each for each in os.scandir(path.parent) if each.is_file()), key=lambda each: each.name)
    except FileNotFoundError:
        return []


def _rotated(path: Path) -> list[os.DirEntry[str]]:
    """Files that the one at `path` was renamed or copied to: ``a.jsonl.1``, ``a.jsonl-2026-11-24``."""
    return [each for each in _beside(path) if re.match(re.escape(path.name) + "[-._~]", each.name)]


def _opened(path: Path, place: Place, *, copied: bool = False) -> Tail | None:
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
