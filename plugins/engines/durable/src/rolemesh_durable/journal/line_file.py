"""A growing file of numbered JSON lines. Each line is written whole and once, and is durable when `append` returns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from rolemesh.runs.jsonl import UNDECODABLE, Numbered, open_regular
from rolemesh_runtime.syncing import sync, sync_folder

__all__ = ["LineFile", "last_line"]

TAIL = 1 << 16


def last_line(path: Path) -> dict[str, Any]:
    """Return the last whole line of a JSON lines file, {} if there is none. Lines that are not JSON are skipped."""
    try:
        with open_regular(path) as file:
            return _last_line(file.fileno())
    except FileNotFoundError:
        return {}


class LineFile:
    """A file that grows by whole lines. Each is durable when `append` has returned, and appears once.

    `key` is the field with a line's number. A line whose number the file has reached is not written again, so a master
    that was stopped half-way and its successor may both write. Nothing is opened before the first `append`.
    """

    def __init__(self, path: Path, key: str, first: int) -> None:
        """Lines count from `first`."""
        self.path = path
        self.last = first - 1
        """Number of the last line that is durable, as far as this process knows."""
        self._key = key
        self._fd = -1
        self._size = 0
        self._failed: tuple[int, bytes] | None = None

    def append(self, lines: Sequence[Numbered]) -> None:
        """Write those of `lines` that the file lacks, and wait until they are on disk.

        Raises `OSError`. Then none of them counts as written, and any part of them in the file is cut off. The same
        call may be repeated; it opens the file again (a stale handle stays stale).
        """
        data = b""
        try:
            if self._fd < 0 or os.fstat(self._fd).st_size != self._size:
                self._settle()
            data = b"".join(line for number, line in lines if number > self.last)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            if data:
                sync(self._fd)
        except OSError:
            if data:
                # After a failed fsync nobody knows which pages the disk has, and the next fsync would not tell.
                self._failed = (self._size, data)
            with suppress(OSError):
                self._cut_failed()
            self.close()
            raise
        self._size += len(data)
        self.last = max([self.last, *(number for number, _ in lines)])

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
        self._fd = -1

    def _settle(self) -> None:
        """Open the file if needed, cut off torn or doubtful lines, and find its last line."""
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            sync_folder(self.path.parent)  # a file that is new is not in its folder after a power cut
        self._cut_failed()
        self._cut_torn()
        sync(self._fd)  # what an earlier master has written, and maybe not waited for
        self._size = os.fstat(self._fd).st_size
        found = _last_line(self._fd).get(self._key)
        if isinstance(found, int):
            self.last = max(self.last, found)

    def _cut_failed(self) -> None:
        """Cut off the remains of a failed `append`, unless another process has appended since."""
        if self._failed is None or self._fd < 0:
            return
        begun, data = self._failed
        size = os.fstat(self._fd).st_size
        if begun < size <= begun + len(data) and data.startswith(os.pread(self._fd, size - begun, begun)):
            os.ftruncate(self._fd, begun)
        self._failed = None

    def _cut_torn(self) -> None:
        """Cut off the incomplete last line of a killed writer."""
        size = end = os.fstat(self._fd).st_size
        while end and os.pread(self._fd, 1, end - 1) != b"\n":
            chunk = min(end, TAIL)
            found = os.pread(self._fd, chunk, end - chunk).rfind(b"\n")
            end = end - chunk + found + 1
        if end != size:
            os.ftruncate(self._fd, end)


def _last_line(fd: int) -> dict[str, Any]:
    size, tail = os.fstat(fd).st_size, TAIL
    while True:
        data = os.pread(fd, tail, max(0, size - tail))
        lines = data[: data.rfind(b"\n") + 1].splitlines()
        for line in reversed(lines[0 if tail >= size else 1 :]):
            with suppress(*UNDECODABLE):
                return msgspec.json.decode(line, type=dict[str, Any])
        if tail >= size:
            return {}
        tail *= 4
