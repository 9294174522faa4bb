"""Files that are complete when they appear, as the source `files` reads them: Parquet, Arrow, and tar (WebDataset).

A shard is identified by its size and its ends, of which the last has the index of Parquet and of Arrow. A shard that
changes is an error, since a rank that starts again would read other records.
"""

from __future__ import annotations

import importlib
import logging
import re
import tarfile
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, ClassVar
from zlib import crc32

import msgspec

from rolemesh_files.columns import BEYOND, Kind, common, kind_of, listed, shortened
from rolemesh_sources import Offset, Records, SourceError

__all__ = ["COMPRESSED", "FORMATS", "ShardPosition", "Shards", "format_of"]

_LOG = logging.getLogger(__name__)
ENDS_BYTES = 64 << 10
"""Bytes at the beginning and at the end of a shard that identify it."""
BATCH_BYTES = 4 << 20
"""Approximate bytes of the rows of a Parquet file that are decoded at once, however large its row groups are."""
READ_BYTES = 64 << 20
"""Bytes of samples of a tar file after which a read returns."""
SAMPLE_BYTES = 1 << 30
"""Maximum bytes of a member of a tar file."""
BLOCK = 512
REST_BYTES = 1 << 20
"""Bytes behind the end of a tar file in which the source looks for more."""
COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")
"""How files of gzip, bzip2, xz and zstd begin."""
END = b"\xff\xff\xff\xff\0\0\0\0"
"""The end of a stream in Arrow's format."""
CHECK_S = 5.0
"""Seconds between two looks whether a shard that was read is still the same."""
WHOLE = "write a shard under another name (.part), and rename it when it is complete; or write it again"


class ShardPosition(msgspec.Struct, frozen=True, array_like=True):
    """Row `at` of the shard with this `size` and crc32 of its ends, `mark`. `byte` is where a tar file goes on, and an
    estimate in others. `done`: the shard has no more rows."""

    at: int
    byte: int
    size: int
    mark: int
    done: bool = False


class _Shard(ABC):
    """An open shard. Its rows come in their order, as pairs of a row and the byte behind it."""

    modules: ClassVar[tuple[str, ...]] = ()

    def __init__(self, path: Path, columns: Sequence[str] | None, skip: bool) -> None:
        self.path, self.columns, self.skip = path, columns, skip
        self.file: BinaryIO = path.open("rb")
        self.starts: dict[int, int] = {}
        """First byte of each sample of a tar file, by the hash of its key. It outlasts the open file."""

    @abstractmethod
    def rows(self, place: ShardPosition) -> Iterator[tuple[Mapping[str, Any], int]]:
        """Yield the rows from `place` on."""

    def schema(self) -> Mapping[str, Kind]:
        """Return the kind of each selected column, as far as it is known before the rows are read."""
        return {}

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def error(self, what: str, remedy: str) -> SourceError:
        return SourceError(what, where=str(self.path), remedy=remedy)


class _Columns(_Shard):
    """A shard of Arrow's columns."""

    names: Sequence[str]
    modules = ("pyarrow", "pyarrow.ipc", "pyarrow.parquet", "pyarrow.types")

    def chosen(self, schema: Any) -> list[str]:
        """Return the selected columns of `schema`. Raises `SourceError` if one is missing, or is there twice."""
        if missing := sorted(set(self.columns or ()) - set(schema.names)):
            what = f"it has no column {', '.join(map(repr, missing))}, but {', '.join(map(repr, schema.names))}"
            raise self.error(what, "name columns that all shards have in the option columns")
        found = list(schema.names if self.columns is None else self.columns)
        if several := [name for name in found if schema.names.count(name) > 1]:
            what, remedy = f"it has several columns {several[0]!r}", "name columns that are there once in columns"
            raise self.error(what, remedy)
        return found

    def kinds(self, schema: Any) -> Mapping[str, Kind]:
        return {name: kind_of(schema.field(name).type) for name in self.chosen(schema)}

    def taken(self, batches: Iterator[tuple[Any, int]], skipped: int) -> Iterator[tuple[Mapping[str, Any], int]]:
        """Yield the rows of `batches` without the first ones, each with the byte that comes with its batch."""
        for batch, byte in batches:
            batch = shortened(batch)
            for first in range(skipped, batch.num_rows, 64):
                for row in self._rows(batch.slice(first, 64)):
                    yield row, byte
            skipped = max(skipped - batch.num_rows, 0)

    def _rows(self, batch: Any) -> Sequence[Mapping[str, Any]]:
        try:
            return listed(batch)
        except BEYOND as error:
            if batch.num_columns == 1:
                what = f"a value of column {batch.schema.names[0]!r} is none of Python: {error}"
                raise self.error(what, "write the shard without it, or name other columns in columns") from error
            for name in batch.schema.names:
                self._rows(batch.select([name]))
            raise


class _Parquet(_Columns):
    def __init__(self, path: Path, columns: Sequence[str] | None, skip: bool) -> None:
        super().__init__(path, columns, skip)
        parquet = importlib.import_module("pyarrow.parquet")
        self._parquet = parquet.ParquetFile(
            path, pre_buffer=False, buffer_size=1 << 20, coerce_int96_timestamp_unit="us"
        )

    def schema(self) -> Mapping[str, Kind]:
        return self.kinds(self._parquet.schema_arrow)

    def rows(self, place: ShardPosition) -> Iterator[tuple[Mapping[str, Any], int]]:
        metadata, chosen = self._parquet.metadata, self.chosen(self._parquet.schema_arrow)
        counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        firsts = [0, *accumulate(counts)]
        begin = bisect_right(firsts, place.at) - 1

        def batches() -> Iterator[tuple[Any, int]]:
            for number in range(begin, len(counts)):
                size = BATCH_BYTES * counts[number] // max(metadata.row_group(number).total_byte_size, 1)
                read = firsts[number]
                for batch in self._parquet.iter_batches(min(max(size, 1), 1024), [number], chosen, use_threads=False):
                    yield batch, place.size * read // metadata.num_rows
                    read += batch.num_rows

        yield from self.taken(batches(), place.at - firsts[begin])

    def close(self) -> None:
        self._parquet.close(force=True)
        super().close()


class _Arrow(_Columns):
    """Arrow's file format (Feather), or its stream format, as `datasets` writes it. The file is mapped into memory."""

    def __init__(self, path: Path, columns: Sequence[str] | None, skip: bool) -> None:
        super().__init__(path, columns, skip)
        arrow, self._ipc = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.ipc")
        self._map = arrow.memory_map(str(path))
        self._is_file = self._map.read(6) == b"ARROW1"
        self.file.seek(-len(END), 2)
        if not self._is_file and self.file.read() != END:
            raise self.error("the stream has no end: it is truncated", WHOLE)
        self._schema = self._opened(None).schema

    def _opened(self, fields: Sequence[int] | None) -> Any:
        self._map.seek(0)
        options = self._ipc.IpcReadOptions(included_fields=fields)
        return (self._ipc.open_file if self._is_file else self._ipc.open_stream)(self._map, options=options)

    def schema(self) -> Mapping[str, Kind]:
        return self.kinds(self._schema)

    def rows(self, place: ShardPosition) -> Iterator[tuple[Mapping[str, Any], int]]:
        fields = sorted(self._schema.get_field_index(name) for name in self.chosen(self._schema))
        reader = self._opened(None if self.columns is None else fields)

        def batches() -> Iterator[tuple[Any, int]]:
            if not self._is_file:
                yield from ((batch, self._map.tell()) for batch in reader)
                return
            for number in range(count := reader.num_record_batches):
                yield reader.get_batch(number), place.size * number // count

        yield from self.taken(batches(), place.at)

    def close(self) -> None:
        self._map.close()
        super().close()


class _Cut(Exception):
    """A tar file that ends too early, of which the rows so far are taken."""


class _Tar(_Shard):
    """Members that follow one another and differ in their extensions only are a sample, as in WebDataset."""

    NAME: ClassVar = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)")

    def __init__(self, path: Path, columns: Sequence[str] | None, skip: bool) -> None:
        super().__init__(path, columns, skip)
        if self.file.read(6).startswith(COMPRESSED):
            self.close()
            raise self.error("the tar file is compressed", "unpack it: a rank begins again in its middle")

    def rows(self, place: ShardPosition) -> Iterator[tuple[Mapping[str, Any], int]]:
        sample: dict[str, Any] = {}
        self._note_starts(place)
        try:
            for key, extension, data, member in self._members(place):
                if not sample or key != sample["__key__"]:
                    if sample and (row := self._row(sample)) is not None:
                        yield row, member
                    sample = {}
                    if self.starts.setdefault(hash(key), member) != member:
                        what = f"the members of sample {key!r} are apart, with other samples between them"
                        raise self.error(what, "write the shard with its members in order (tar --sort=name)")
                sample = sample or {"__key__": key}
                if extension in sample:
                    self._bad(f"sample {key!r} has the member .{extension} twice")
                sample.setdefault(extension, data)
        except _Cut:
            return  # the last sample may lack members
        if sample and (row := self._row(sample)) is not None:
            yield row, place.size

    def _note_starts(self, place: ShardPosition) -> None:
        """Note the samples before `place`, unless this process has read them."""
        if not place.byte:
            self.starts.clear()
        elif not self.starts:
            self.file.seek(0)
            with tarfile.open(fileobj=self.file, mode="r:") as tar:
                while (member := tar.next()) is not None and member.offset < place.byte:
                    tar.members = []  # type: ignore[attr-defined]
                    if (found := self._named(member)) is not None:
                        self.starts.setdefault(hash(found[0]), member.offset)

    def _row(self, sample: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the sample as a row; None to leave it out."""
        if missing := [name for name in self.columns or () if name not in sample]:
            self._bad(f"sample {sample['__key__']!r} has no member .{missing[0]}, which is in columns")
            return None
        return sample if self.columns is None else {name: sample[name] for name in self.columns}

    def _bad(self, what: str) -> None:
        if not self.skip:
            raise self.error(what, "write the shard again, or set skip: true to leave this out")
        _LOG.warning("%s: %s; it is left out", self.path, what)

    def _members(self, place: ShardPosition) -> Iterator[tuple[str, str, bytes, int]]:
        """Yield key, extension, content, and the first byte of each member of a sample."""
        self.file.seek(place.byte)
        end = place.byte
        if place.byte < place.size:
            with tarfile.open(fileobj=self.file, mode="r:") as tar:
                while (member := tar.next()) is not None:
                    tar.members = []  # type: ignore[attr-defined]  # it would remember all
                    end = tar.offset
                    if end > place.size:
                        break
                    if (found := self._named(member)) is not None:
                        self.file.seek(member.offset_data)
                        file = tar.extractfile(member) if member.issparse() else None
                        yield *found, file.read() if file else self.file.read(member.size), member.offset
        self.file.seek(end)
        rest = self.file.read(REST_BYTES)
        if rest.startswith(bytes(BLOCK)) and rest.strip(b"\0"):
            self._bad(f"behind its end at byte {end} the tar file has more, as after cat a.tar b.tar")
        if not rest.startswith(bytes(BLOCK)):
            what = f"the tar file has no end behind byte {min(end, place.size)}: it is truncated or damaged"
            if not self.skip:
                raise self.error(what, f"{WHOLE}; or set skip: true to take what is whole")
            _LOG.warning("%s: %s; going on without its end", self.path, what)
            raise _Cut

    def _named(self, member: tarfile.TarInfo) -> tuple[str, str] | None:
        """Return key and extension; None for a member that belongs to no sample."""
        name = member.name
        found = self.NAME.fullmatch(name)
        if not (member.isreg() or member.islnk() or member.issym()) or re.match(r"__[^/]*__($|/)", name) or not found:
            return None
        if not member.isreg():
            self._bad(f"member {name!r} is a link (tar follows links with --dereference --hard-dereference)")
            return None
        if name.startswith("/") or ".." in name.split("/"):
            self._bad(f"member {name!r} leads out of the archive")
            return None
        if member.size > SAMPLE_BYTES:
            self._bad(f"member {name!r} has {member.size} bytes, more than {SAMPLE_BYTES}")
            return None
        return found[1], found[2].lower()


FORMATS: Mapping[str, type[_Shard]] = {"parquet": _Parquet, "arrow": _Arrow, "tar": _Tar}


def format_of(name: str) -> str:
    """Return the format of a file by the end of its name: parquet, arrow, tar, or lines."""
    found = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".tar": "tar"}
    return found.get(Path(name).suffix.lower(), "lines")


class _Reading:
    """A shard that is being read: its next row is at `place`."""

    def __init__(self, shard: _Shard, place: ShardPosition, stat: tuple[int, ...]) -> None:
        self.shard, self.place, self.stat, self.rows = shard, place, stat, shard.rows(place)
        self.ahead: tuple[Mapping[str, Any], int] | None = None

    def is_over(self) -> bool:
        """Return whether there is no further row. It reads one ahead."""
        self.ahead = self.ahead or next(self.rows, None)
        return self.ahead is None

    def take(self, most: int) -> list[Mapping[str, Any]]:
        """Return the next rows, and move the place behind them."""
        rows, size = list[Mapping[str, Any]](), 0
        while len(rows) < most and size < READ_BYTES and not self.is_over() and self.ahead is not None:
            (row, byte), self.ahead = self.ahead, None
            rows.append(row)
            size += sum(len(value) for value in row.values() if isinstance(value, bytes))
            self.place = ShardPosition(self.place.at + 1, byte, self.place.size, self.place.mark)
        return rows


class Shards:
    """The shards of a folder, for one rank."""

    MOST: ClassVar = 16
    """Maximum number of open shards."""

    def __init__(self, folder: Path, columns: Sequence[str] | None, skip: bool) -> None:
        self._folder, self._columns, self._skip = folder, columns, skip
        self._open: dict[str, _Reading] = {}
        self._checked: dict[str, float] = {}
        self._schemas: dict[str, tuple[str, Mapping[str, Kind]]] = {}
        self._starts: dict[Path, dict[int, int]] = {}

    def read(self, partition: str, format: str, offset: Offset, most: int) -> Records:
        """See `Source.read`. An offset is a `ShardPosition`, as a list."""
        place = None if offset is None else msgspec.convert(offset, ShardPosition)
        path = self._folder / partition
        if place is not None and place.done:
            return self._still(partition, path, place, offset)
        reading = self._reading(partition, path, format, place)
        if reading is None:
            return Records((), None)
        try:
            with self._asking(path, reading.place):
                rows = reading.take(most)
        except SourceError:
            self._close(partition)
            raise
        at = reading.place
        try:
            with self._asking(path, at):
                over = reading.is_over()
        except SourceError:
            over = False  # these rows are read first
            self._close(partition)
        if over:
            at = ShardPosition(at.at, at.size, at.size, at.mark, done=True)
            self._close(partition)
            self._starts.pop(path, None)
        return Records(rows, msgspec.to_builtins(at))

    def left(self, partition: str, offset: Offset) -> int:
        """Return the number of unread bytes, about."""
        place = None if offset is None else msgspec.convert(offset, ShardPosition)
        if place is not None:
            return 0 if place.done else max(place.size - place.byte, 1)
        try:
            return max((self._folder / partition).stat().st_size, 1)
        except FileNotFoundError:
            return 0

    def close(self) -> None:
        """Close all shards."""
        for partition in list(self._open):
            self._close(partition)

    def _close(self, partition: str) -> None:
        if (reading := self._open.pop(partition, None)) is not None:
            reading.shard.close()

    def _still(self, partition: str, path: Path, place: ShardPosition, offset: Offset) -> Records:
        """The shard was read to its end: look now and then whether it is still the same."""
        if time.monotonic() >= self._checked.get(partition, 0.0) + CHECK_S:
            self._checked[partition] = time.monotonic()
            if not path.exists():
                self._is_there()
                return Records((), None)
            self._same(path, place)
        return Records((), offset)

    def _is_there(self) -> None:
        if not self._folder.is_dir():
            remedy = "mount or restore it; its files would be read again otherwise"
            raise SourceError("the folder of the files is gone", where=str(self._folder), remedy=remedy)

    def _same(self, path: Path, place: ShardPosition) -> None:
        if _identity(path) != (place.size, place.mark):
            what = f"it has changed since its first {place.at} records were read"
            raise SourceError(what, where=str(path), remedy="restore it, and write new records to a new file")

    def _reading(self, partition: str, path: Path, format: str, place: ShardPosition | None) -> _Reading | None:
        """Return the shard at `place`; None if it was removed."""
        known = self._open.pop(partition, None)
        try:
            stat = _stat(path)
        except FileNotFoundError:
            if known is not None and known.place == place:
                self._open[partition] = known  # it is read to its end
                return known
            self._is_there()
            if place is None:
                return None
            what = f"it was removed after {place.at} of its records"
            if not self._skip:
                remedy = "restore it, or set skip: true to go on without the rest"
                raise SourceError(what, where=str(path), remedy=remedy) from None
            _LOG.warning("%s: %s; going on without the rest", path, what)
            return None
        if known is not None and (known.place != place or known.stat != stat):
            known.shard.close()
            known = None
        if known is None:
            if place is None:
                place = ShardPosition(0, 0, *self._identified(path))
            else:
                self._same(path, place)
            known = _Reading(self._opened(path, format, place), place, stat)
        self._open[partition] = known  # the one that was used last is the last
        if len(self._open) > self.MOST:
            self._close(next(iter(self._open)))
        return known

    def _identified(self, path: Path) -> tuple[int, int]:
        with self._asking(path, None):
            size, mark = _identity(path)
        if not size:
            raise SourceError("the file is empty", where=str(path), remedy=WHOLE)
        return size, mark

    def _opened(self, path: Path, format: str, place: ShardPosition) -> _Shard:
        kind = FORMATS[format]
        try:
            for module in kind.modules:
                importlib.import_module(module)
        except ImportError as error:
            what, remedy = "pyarrow, which reads this format, is missing", "pip install 'rolemesh-sources[arrow]'"
            raise SourceError(what, where=str(path), remedy=remedy) from error
        with self._asking(path, place):
            shard = kind(path, self._columns, self._skip)
            shard.starts = self._starts.setdefault(path, shard.starts)
            found = shard.schema()
        other, known = self._schemas.setdefault(format, (path.name, found))
        both = {name: common(found[name], known[name]) for name in found.keys() & known.keys()}
        alike = {name: kind for name, kind in both.items() if kind is not None}
        self._schemas[format] = other, known | alike
        if clashing := (found.keys() | known.keys()) - alike.keys():
            shard.close()
            name = min(clashing)
            here, there = (kinds.get(name, "missing") for kinds in (found, known))
            what = f"column {name!r} is {here}, but in {other} it is {there}"
            remedy = "write all shards with one schema, or name columns that are alike in the option columns"
            raise SourceError(what, where=str(path), remedy=remedy)
        return shard

    @contextmanager
    def _asking(self, path: Path, place: ShardPosition | None) -> Iterator[None]:
        """Errors inside become `SourceError` with the file and a remedy."""
        try:
            yield
        except SourceError:
            raise
        except (OSError, ValueError, NotImplementedError, tarfile.TarError) as error:  # those of Arrow among them
            if isinstance(error, PermissionError):
                remedy = "let the job's user read it"
                raise SourceError(f"cannot be read: {error.strerror}", where=str(path), remedy=remedy) from error
            if place is not None and path.exists():
                self._same(path, place)
            raise SourceError(f"cannot be read: {error}", where=str(path), remedy=WHOLE) from error


def _stat(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _identity(path: Path) -> tuple[int, int]:
    """Return the size of a file and the crc32 of its ends."""
    with path.open("rb") as file:
        mark = crc32(file.read(ENDS_BYTES))
        size = file.seek(0, 2)
        file.seek(max(size - ENDS_BYTES, 0))
        return size, crc32(file.read(ENDS_BYTES), mark)
