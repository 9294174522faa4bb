"""The source `files`: the files of a growing folder. It reads JSON lines like ``tail -F``, and whole shards of Parquet,
Arrow and tar, and can read again from an offset."""

from __future__ import annotations

import logging
import time
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, Field

from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh_files.matching import matching
from rolemesh_files.shards import COMPRESSED, Shards, format_of
from rolemesh_files.tail import HEAD_BYTES, FilePosition, Tail, find, opened, rotated
from rolemesh_sources import Reader, Records, Source, SourceError

__all__ = ["FilesOptions", "FilesSource"]

_LOG = logging.getLogger(__name__)
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class FilesOptions(BaseModel, extra="forbid"):
    """The files, the end of the source, and the handling of missing data."""

    path: str = Field(
        description="The files, as a pattern (logs/*.jsonl, data/**/*.jsonl) relative to the job file's folder. It "
        "must not match the names that files are rotated to. Wildcards match no names that begin with a dot or with "
        "_, such as Spark's _temporary. Links are followed, and a file that is linked twice is read once."
    )
    format: Literal["lines", "parquet", "arrow", "tar"] | None = Field(
        default=None,
        description="lines: a JSON object in each line; the others are shards, which are complete when they appear: "
        "tar as in WebDataset. null: by the end of a file's name (.parquet, .arrow, .feather, .tar; others are lines).",
    )
    columns: list[str] | None = Field(
        default=None,
        min_length=1,
        description="The columns that are read: fields, columns of a table, or extensions of a tar file's members "
        "(jpg), and __key__. null: all.",
    )
    until: str | None = Field(
        default=None,
        description="The end: 'end' when all present lines are read, or the name of a file in the pattern's folder "
        "(such as _DONE) that marks the end. null: never.",
    )
    skip: bool = Field(
        default=False,
        description="Skip lines that are not JSON objects, and data that was lost before it was read, with a warning "
        "instead of an error.",
    )
    scan_s: float = Field(default=1.0, ge=0, description="Seconds between looks for new files.")


class FilesSource(Source):
    """Lines of JSON objects in growing files, or the rows of shards, in a growing folder. Each file is a partition."""

    Options = FilesOptions
    options: FilesOptions

    def open(self, reader: Reader) -> None:
        """See `Source.open`."""
        pattern = Path(reader.base, self.options.path)
        fixed = next((i for i, part in enumerate(pattern.parts) if set("*?[") & set(part)), len(pattern.parts) - 1)
        self._folder = Path(*pattern.parts[:fixed])
        self._pattern = str(Path(*pattern.parts[fixed:]))
        self._reader = reader
        self._names: list[str] = []
        self._looked = float("-inf")
        self._tails: dict[str, Tail] = {}
        self._shards = Shards(self._folder, self.options.columns, self.options.skip)

    def _format(self, partition: str) -> str:
        return self.options.format or format_of(partition)

    def partitions(self) -> Sequence[str]:
        """Return the files, as paths relative to the folder."""
        if time.monotonic() >= self._looked + self.options.scan_s:
            self._look()
        return self._names

    def _look(self) -> None:
        self._looked = time.monotonic()
        self._names = matching(self._folder, self._pattern)
        for partition, tail in self._tails.items():
            if not tail.is_at(self._folder / partition):
                self._check_renamed(partition, tail.place(0))

    def read(self, partition: str, offset: Any, max_rows: int) -> Records:
        """See `Source.read`. An offset is a `FilePosition` or `ShardPosition`, as a list."""
        if (format := self._format(partition)) != "lines":
            return self._shards.read(partition, format, offset, max_rows)
        place = msgspec.convert(offset, FilePosition) if offset is not None else FilePosition()
        path = self._folder / partition
        if (tail := self._tail(partition, path, place)) is None:
            return self._gone(path, place)
        self._tails[partition] = tail  # the one that was used last is the last
        if len(self._tails) > Tail.MOST:
            self._tails.pop(next(iter(self._tails))).close()
        left = tail.is_left(path)
        lines, at = tail.lines(place.at, max_rows, whole=left or self._over())
        if left and at == place.at:
            return self._next(partition, path, place, max_rows)
        return self._records(tail, lines, at)

    def _tail(self, partition: str, path: Path, place: FilePosition) -> Tail | None:
        """Return the file with this place, which may have been renamed, removed or copied since the last read."""
        known = self._tails.pop(partition, None)
        if known is not None and not known.has(place):
            known.close()
            known = None
        if known is not None and known.is_at(path):
            return known
        found = find(path, place)
        if found is None or (found.path != path and not (known and known.is_at(found.path))):
            self._check_renamed(partition, place)
        if known is None or (found is not None and place.at):
            known, found = found, known
        if found is not None:
            found.close()
        return known

    def _records(self, tail: Tail, lines: list[tuple[int, bytes]], at: int) -> Records:
        rows = [row for number, line in lines if (row := self._row(tail.path, number, line)) is not None]
        return Records(rows, msgspec.to_builtins(tail.place(at)))

    def _next(self, partition: str, path: Path, place: FilePosition, max_rows: int) -> Records:
        """The file was read to its end and replaced: read the file that was started after it, if there is one. Until
        that has a line, the place stays in the old file, since only what was read identifies a file."""
        tail = self._tails[partition]
        if not (later := tail.later(path)):
            if path.exists():
                return self._gone(path, place)
            _LOG.info("%s is read and has been removed", path)
            self._tails.pop(partition).close()
            return Records((), None)
        new = find(path, FilePosition(later[0].st_ino))
        if new is None:
            return Records((), msgspec.to_builtins(place))
        if tail.removed and new.is_before(place):
            new.close()
            return self._gone(path, place)
        lines, at = new.lines(0, max_rows, whole=new.is_left(path) or self._over())
        if not at:
            new.close()
            return Records((), msgspec.to_builtins(place))
        tail.close()
        self._tails[partition] = new
        return self._records(new, lines, at)

    def _check_renamed(self, partition: str, place: FilePosition) -> None:
        """Raise `SourceError` if the partition's file now is another partition, which would be read again."""
        for name in matching(self._folder, self._pattern) if place.inode else ():
            path = self._folder / name
            if name != partition and (tail := opened(path, place, copied=place.at >= HEAD_BYTES)) is not None:
                tail.close()
                what = f"it has what was read as {partition}, so its records would be read twice"
                remedy = f"rename it to {partition}, or to a name that path: {self.options.path} does not match"
                raise SourceError(what, where=str(path), remedy=remedy)

    def _gone(self, path: Path, place: FilePosition) -> Records:
        """No file has this place: return where to continue, or raise `SourceError`."""
        tail = opened(path, FilePosition())
        if tail is None:
            if not place.inode:
                return Records((), None)
            if not self._folder.is_dir():
                remedy = "mount or restore it; its files would be read again otherwise"
                raise SourceError("the folder of the files is gone", where=str(self._folder), remedy=remedy)
            if not rotated(path):
                _LOG.info("%s is not there any more, of which %d bytes were read", path, place.at)
                return Records((), None)
        what = f"what followed byte {place.at} is gone: the file was truncated or replaced, and no other has it"
        if not self.options.skip:
            remedy = "rotate files by renaming them within their folder, or set skip: true to go on with what is there"
            raise SourceError(what, where=str(path), remedy=remedy)
        _LOG.warning("%s: %s", path, what)
        if tail is None:
            return Records((), None)
        at = tail.size if tail.is_before(place) else 0
        place = tail.place(at)
        tail.close()
        return Records((), msgspec.to_builtins(place))

    def _row(self, path: Path, number: int, line: bytes) -> dict[str, Any] | None:
        if not line.strip():
            return None
        if not number and line.startswith(COMPRESSED):
            what, remedy = "the file is compressed", f"unpack it: {path.name} is read as JSON lines, from any byte on"
            raise SourceError(what, where=str(path), remedy=remedy)
        try:
            row, columns = _decode(line.removeprefix(BOM_UTF8)), self.options.columns
            return row if columns is None else {name: row[name] for name in columns if name in row}
        except UNDECODABLE as error:
            if not self.options.skip:
                remedy = "correct the line, or set skip: true to leave such lines out"
                what = f"the line at byte {number} is no JSON object: {error}"
                raise SourceError(what, where=str(path), remedy=remedy) from error
            _LOG.warning("%s: the line at byte %d is no JSON object: %s", path, number, error)
            return None

    def _over(self) -> bool:
        """Return whether all writers have finished."""
        until = self.options.until
        return until is not None and (until == "end" or (self._folder / until).exists())

    def ended(self, position: Mapping[str, Any]) -> bool:
        """See `Source.ended`."""
        if not self._over():
            return False
        self._look()  # after what says that it is over, so that nothing is missed that came before
        reader = self._reader
        mine = [name for name in self._names if self.rank_of(name, reader.world_size) == reader.rank]
        return all(name in position for name in mine) and not any(map(self._left, position, position.values()))

    def lag(self, position: Mapping[str, Any]) -> float:
        """Return the number of unread bytes."""
        ranks, rank = self._reader.world_size, self._reader.rank
        mine = {name for name in self.partitions() if self.rank_of(name, ranks) == rank}
        return float(sum(self._left(name, position.get(name)) for name in mine | position.keys()))

    def _left(self, partition: str, offset: Any) -> int:
        if self._format(partition) != "lines":
            return self._shards.left(partition, offset)
        place = msgspec.convert(offset, FilePosition) if offset is not None else FilePosition()
        path = self._folder / partition
        with suppress(FileNotFoundError):
            now = path.stat()
            if place.inode in (0, now.st_ino):
                return max(now.st_size - place.at, 0)
        tail = self._tails.get(partition)
        if tail is None or not tail.has(place):
            if (found := find(path, place)) is None:
                return 0
            if tail is not None:
                tail.close()
            self._tails[partition] = tail = found
        return tail.size - place.at + sum(each.st_size for each in tail.later(path))

    def close(self) -> None:
        """See `Source.close`."""
        for tail in self._tails.values():
            tail.close()
        self._tails.clear()
        self._shards.close()
