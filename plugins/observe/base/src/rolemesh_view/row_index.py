"""An index of the kept rows of a run: the entry of each row, and the place of its line.

A row is decoded once, when it is new, and again when a page shows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh_recorder.parts import open_recorded
from rolemesh_recorder.reading import decode_row, kept_files, read_rows
from rolemesh_recorder.rows import Row
from rolemesh_view.entries import Entry, entry_of, missing_policy

__all__ = ["MOST_ROWS", "Named", "Reads", "RowIndex"]

Reads = MutableMapping[str, tuple[int, int]]
"""Things that are being read, by name, each with the number of its parts that have been read, and of all."""
FILES = "files of kept rows"
T = TypeVar("T")
MOST_ROWS = 50_000
"""About the maximum number of kept rows that the viewer looks at: the newest ones."""
CHUNK_BYTES = 1 << 18
"""Bytes of kept rows that are read at a time."""
FIRST_ROWS, MORE = 1024, 4
"""Number of rows that a search reads first, and how many times as many it reads each time while it has too few."""


class _File(NamedTuple):
    """The rows of a file from `begin` to `end` in bytes. `stamp`: the file's inode, size and time of change at that
    moment."""

    stamp: tuple[int, int, int]
    begin: int
    end: int
    entries: list[Entry]


class _Texts(msgspec.Struct):
    """The columns of a row, as JSON."""

    columns: dict[str, msgspec.Raw]


_TEXTS = msgspec.json.Decoder(_Texts)


class Named(NamedTuple):
    """The names in all rows: operators, columns with a number per row, whether some row has log-probabilities of
    trainer and sampler, and which of them are missing, as of `missing_policy`."""

    operators: list[str]
    columns: list[str]
    paired: bool
    missing: str


class RowIndex:
    """The kept rows of the run in `path`. Only one thread may use it at a time.

    `reads` says meanwhile how many of the files it has read.
    """

    def __init__(self, path: Path, reads: Reads | None = None) -> None:
        self.version = 0
        """A number that changes when `entries` finds other rows than before."""
        self._path, self._reads = path, {} if reads is None else reads
        self.partial = False
        """Whether the run has more rows than `entries` has found."""
        self._files: dict[Path, _File] = {}
        self._derived: dict[str, tuple[int, Any]] = {}

    def entries(self, most: int = MOST_ROWS) -> list[Entry]:
        """Return about the newest `most` rows, rank by rank, the oldest first, the same bytes of each rank. This reads
        what is new since the last call."""
        there = list(kept_files(self._path))
        files = {path: file for ref, path in there if (file := _renewed(self._files.get(path), ref, path)) is not None}
        if sum(len(file.entries) for file in files.values()) > 2 * most:
            files = {}
        self._read_back(files, there, most)
        if [*map(id, files.values())] != [*map(id, self._files.values())]:
            self.version += 1
        self._files = {path: files[path] for _, path in there if path in files}
        self.partial = len(self._files) < len(there) or any(file.begin for file in files.values())
        return [row for file in self._files.values() for row in file.entries]

    def _read_back(self, files: dict[Path, _File], there: Sequence[tuple[RankRef, Path]], most: int) -> None:
        """Add to `files` what is before them, until they have `most` rows: a part of each rank's, and again."""
        waiting: dict[RankRef, list[Path]] = {}
        for ref, path in there:
            if path not in files or files[path].begin:
                waiting.setdefault(ref, []).append(path)
        ranks, found = deque(waiting.items()), sum(len(file.entries) for file in files.values())
        while ranks and found < most:
            ref, paths = ranks.popleft()
            self._reads[FILES] = sum(not file.begin for file in files.values()), len(there)
            before = files.get(paths[-1])
            with suppress(OSError):
                files[paths[-1]] = now = _with_earlier(before, ref, paths[-1])
                found += len(now.entries) - (len(before.entries) if before is not None else 0)
            if paths[-1] not in files or not files[paths[-1]].begin:
                paths.pop()
            if paths:
                ranks.append((ref, paths))
        self._reads.pop(FILES, None)

    def derived(self, name: str, compute: Callable[[list[Entry]], T]) -> T:
        """Return what `compute` makes of the rows that `entries` has found: once for each version of them."""
        known = self._derived.get(name)
        if known is None or known[0] != self.version:
            rows = [row for file in self._files.values() for row in file.entries]
            known = self._derived[name] = self.version, compute(rows)
        found: T = known[1]
        return found

    def newest(self) -> list[Entry]:
        """Return the rows that `entries` has found, those of the newest step first, by their numbers."""
        return self.derived("newest", lambda rows: sorted(rows, key=lambda row: (-row.step, row.row)))

    def named(self) -> Named:
        """Return the names in the rows that `entries` has found."""
        return self.derived("named", _named)

    def read(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Row]]:
        """Yield the rows of `entries` with all their columns, without those whose file is gone."""
        for path, found in groupby(entries, key=lambda entry: entry.place[0]):
            with suppress(OSError), open_recorded(path) as file:
                for entry in found:
                    file.seek(entry.place[1])
                    row = decode_row(file.readline())
                    if row is not None:
                        yield entry, row

    def find(self, entries: Sequence[Entry], text: str, most: int) -> tuple[list[Entry], bool]:
        """Return the first `most` of `entries` with `text` in a column, and whether there are more.

        The text is in a text, or in what else is there, as JSON. The search ends when it has found enough.
        """
        found: list[Entry] = []
        wanted, at, size = msgspec.json.encode(text.encode(errors="backslashreplace").decode())[1:-1], 0, FIRST_ROWS
        while at < len(entries) and len(found) <= most:
            found += _having(entries[at : at + size], wanted)
            at, size = at + size, MORE * size
        return found[:most], len(found) > most


def _named(rows: Sequence[Entry]) -> Named:
    columns = {name for row in rows for name in row.numbers}
    paired = any(row.paired for row in rows)
    return Named(sorted({row.op for row in rows}), sorted(columns), paired, missing_policy(rows))


def _having(entries: Sequence[Entry], wanted: bytes) -> list[Entry]:
    """Return those of `entries` that have `wanted` in a column. Each file is read from the first to the last of its."""
    files: dict[Path, dict[int, Entry]] = {}
    for entry in entries:
        files.setdefault(entry.place[0], {})[entry.place[1]] = entry
    found: set[int] = set()
    for path, places in files.items():
        first, last = min(places), max(places)
        with suppress(OSError), open_recorded(path) as file:
            for at, data in _chunks(file, first, last):
                found.update(id(entry) for entry in _with_text(data, at, places, wanted))
    return [entry for entry in entries if id(entry) in found] if found else []


def _chunks(file: BinaryIO, first: int, last: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines from the one that begins at `first` to the one at `last`, some at a time, with their place."""
    file.seek(first)
    while first <= last and (data := file.read(min(CHUNK_BYTES, last - first + 1))):
        if not data.endswith(b"\n"):
            data += file.readline()
        yield first, data
        first += len(data)


def _with_text(data: bytes, first: int, entries: Mapping[int, Entry], wanted: bytes) -> Iterator[Entry]:
    """Yield those of `entries` that have `wanted` in a column, by their begins; `data` begins at `first`."""
    at = data.find(wanted)
    while at >= 0:
        begin, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
        entry = entries.get(first + begin)
        if entry is not None and (_is_in_value(data, at, at + len(wanted)) or _has(data[begin:end], wanted)):
            yield entry
        at = data.find(wanted, end) if end >= 0 else -1


def _is_in_value(data: bytes, begin: int, end: int) -> bool:
    """Return whether this part of `data` is certainly in a column's value, without a look at the whole line.

    Before a value come the beginning of the columns, no names of those that are cut, and no backslash. A column's name
    ends with a quotation mark and a colon.
    """
    line, quote = data.rfind(b"\n", 0, begin) + 1, data.find(b'"', end)
    names_end = data.find(b'"columns":{', line, begin)
    within = names_end >= 0 and data.find(b'"cut":[', names_end, begin) < 0
    return within and data[begin - 1] != ord("\\") and quote >= 0 and data[quote + 1] != ord(":")


def _has(line: bytes, wanted: bytes) -> bool:
    """Return whether a column has `wanted`, which begins with a whole character and not behind a backslash."""
    try:
        columns = _TEXTS.decode(line).columns.values()
    except UNDECODABLE:
        return False
    for column in columns:
        before, found, after = bytes(column).partition(wanted)
        while found:
            if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
                return True
            more, found, after = after.partition(wanted)
            before += wanted + more
    return False


def _renewed(known: _File | None, ref: RankRef, path: Path) -> _File | None:
    """Return the rows of a file, of which `known` was read before, and its new ones; None if nothing of it is known."""
    try:
        stamp = _stamp(path)
        if known is None or known.stamp == stamp:
            return known
        if known.stamp[0] != stamp[0] or stamp[1] <= known.stamp[1]:
            return None  # the file is another one: recorders only append
        found, end = _rows_of(ref, path, known.end, stamp[1])
    except OSError:
        return None
    return _File(stamp, known.begin, end, known.entries + found)


def _with_earlier(known: _File | None, ref: RankRef, path: Path) -> _File:
    """Return the rows of a file, and a chunk of those before `known`; None: before the file's end. Raises `OSError`."""
    stamp = known.stamp if known is not None else _stamp(path)
    end = known.begin if known is not None else stamp[1]
    size = CHUNK_BYTES
    with open_recorded(path) as file:
        while True:
            begin = max(0, end - size)
            file.seek(begin)
            if not begin or (begin := begin + len(file.readline())) < end:
                break  # the line that has the chunk's begin belongs to the chunk before it
            size *= 2
    found, after = _rows_of(ref, path, begin, end)
    if known is None:
        return _File(stamp, begin, after, found)
    return known._replace(begin=begin, entries=found + known.entries)


def _rows_of(ref: RankRef, path: Path, begin: int, end: int) -> tuple[list[Entry], int]:
    """Return the rows of the complete lines of a file between two places, and the place behind the last one."""
    found = []
    for at, after, row in read_rows(path, begin):
        if after > end:
            break
        begin = after
        if row is not None:
            found.append(entry_of(ref, row, (path, at)))
    return found, begin


def _stamp(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns
