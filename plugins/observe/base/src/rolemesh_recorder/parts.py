"""The parts of a rank's record on disk: bounded in number and size, and never a burden to the rank."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from rolemesh_recorder.coarsening import coarsened
from rolemesh_recorder.lines import RECORD_DIR, Head, Line, decode_lines, encode
from rolemesh_runtime.run_files import names_in, open_in

__all__ = ["Parts", "open_recorded", "part_files", "read_part"]

PARTS = 8
"""Number of parts of a record, of equal maximum size."""
READ_BYTES = 1 << 20
"""Bytes of a part that are decoded at a time."""


class Parts:
    """Appends lines to the newest part. When there are too many, it makes one of the two that are the least coarse."""

    def __init__(self, folder: Path, head: Head, max_bytes: int) -> None:
        """Begin a new part with `head`, behind those of former processes. Raises `OSError`."""
        self._folder, self._head = folder, head
        self._limit = max(4096, max_bytes // PARTS)
        self._fd = -1
        self._size = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._begin()

    def append(self, lines: Sequence[Line]) -> None:
        """Write lines at once. Raises `OSError`; then none of them is there."""
        data = b"".join(encode(line) + b"\n" for line in lines)
        if self._fd < 0 or self._size + len(data) > self._limit:
            self._begin()
        self._write(data)

    def tidy(self) -> None:
        """Join old parts while there are too many. Raises `OSError`."""
        while len(files := part_files(self._folder)) > PARTS:
            one, two = _pair([_coarse(path) for path in files[:-1]])
            lines = [line for path in files[one : two + 1] for line in read_part(path)]
            new = files[one].with_suffix(".new")
            try:
                new.write_bytes(b"".join(encode(line) + b"\n" for line in coarsened(lines, self._limit)))
            except OSError:
                new.unlink(missing_ok=True)  # a full disk has no room for half a part
                raise
            files[two].unlink()
            new.replace(files[one])

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _begin(self) -> None:
        self.close()
        number = max((int(path.stem) for path in part_files(self._folder)), default=-1) + 1
        path = self._folder / f"{number:06}.jsonl"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = 0
        try:
            self._write(encode(self._head) + b"\n")
        except OSError:
            self.close()
            path.unlink()
            raise

    def _write(self, data: bytes) -> None:
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            os.ftruncate(self._fd, self._size)  # the same lines come again
            raise
        self._size += len(data)


def part_files(folder: Path) -> list[Path]:
    """Return the parts of a rank's record in the order of time; empty if there is none."""
    try:
        names = names_in(*_place(folder))  # a job may have ten thousand such folders, for which Path.glob takes seconds
    except OSError:
        return []
    return [folder / name for name in sorted(names) if name.endswith(".jsonl") and name[:-6].isdigit()]


def read_part(path: Path) -> Iterator[Line]:
    """Yield the lines of a part. Damaged ones, and an incomplete last one, are left out. Raises `OSError`."""
    with open_recorded(path) as file:
        yield from decode_lines(_complete(file.readline()))  # many callers want the first line only
        while data := file.read(READ_BYTES):
            data += file.readline()
            yield from decode_lines(_complete(data))
            if not data.endswith(b"\n"):
                break  # what the rank adds meanwhile begins within a line


def open_recorded(path: Path) -> BinaryIO:
    """Open a file of the record for reading. No link from the folder of the record on is followed. Raises `OSError`."""
    return open_in(*_place(path))


def _place(path: Path) -> tuple[Path, *tuple[str, ...]]:
    """Return the run's folder and the names below it. A folder of another name stands for a run's folder itself."""
    parts = path.parts
    at = max((at for at, part in enumerate(parts) if part == RECORD_DIR), default=len(parts) - 1)
    names = parts[at:]
    return Path(*parts[:at]), *names


def _complete(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]


def _coarse(path: Path) -> int:
    first = next(read_part(path), None)
    return first.coarse if isinstance(first, Head) else 0


def _pair(coarse: Sequence[int]) -> tuple[int, int]:
    """Return the places of the two neighbours to join: the oldest ones that are equally coarse, or else the oldest."""
    for at in range(len(coarse) - 1):
        if coarse[at] == coarse[at + 1]:
            return at, at + 1
    return 0, 1
