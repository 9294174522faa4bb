"""An index of the kept rows of a run: the entry of each row, and the place of its line.

A row is decoded once, when it is new, and again when a page shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

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
"""Maximum number of kept rows that the viewer looks at."""
FIRST_ROWS, MORE = 1024, 4
"""Number of rows that a search reads first, and how many times as many it reads each time while it has too few."""


class _File(NamedTuple):
    """The rows of a file up to `end` in bytes. `stamp`: the file's inode, size and time of change at that moment."""

    stamp: tuple[int, int, int]
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
        self._files: dict[Path, _File] = {}
        self._derived: dict[str, tuple[int, Any]] = {}

    def entries(self, most: int = MOST_ROWS) -> list[Entry]:
        """Return the first `most` rows, rank by rank, the oldest first. This reads what is new since the last call."""
        found: list[Entry] = []
        files: dict[Path, _File] = {}
        there = list(kept_files(self._path))
        for at, (ref, path) in enumerate(there):
            if len(found) >= most:
                break
            self._reads[FILES] = at, len(there)
            try:
                files[path] = _renewed(self._files.get(path), ref, path)
            except OSError:
                continue
            found += files[path].entries[: most - len(found)]
        self._reads.pop(FILES, None)
        if [*map(id, files.values())] != [*map(id, self._files.values())]:
            self.version += 1
        self._files = files
        return found

    def derived(self, name: str, compute: Callable[[list[Entry]], T]) -> T:
        """Return what `compute` makes of the rows that `entries` has found: once for each version of them."""
        known = self._derived.get(name)
        if known is None or known[0] != self.version:
            rows = [row for file in self._files.values() for row in file.entries][:MOST_ROWS]
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
            file.seek(first)
            data = file.read(last - first) + file.readline()
            found.update(id(entry) for entry in _with_text(data, first, places, wanted))
    return [entry for entry in entries if id(entry) in found] if found else []


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


def _renewed(known: _File | None, ref: RankRef, path: Path) -> _File:
    """Return the rows of a file, of which `known` was read before. Raises `OSError`."""
    status = path.stat()
    stamp = status.st_ino, status.st_size, status.st_mtime_ns
    if known is not None and known.stamp == stamp:
        return known
    if known is None or known.stamp[0] != stamp[0] or stamp[1] <= known.stamp[1]:
        known = _File(stamp, 0, [])  # the file is another one: recorders only append
    entries, end = list(known.entries), known.end
    for begin, after, row in read_rows(path, known.end):
        end = after
        if row is not None:
            entries.append(entry_of(ref, row, (path, begin)))
    return _File(stamp, end, entries)
