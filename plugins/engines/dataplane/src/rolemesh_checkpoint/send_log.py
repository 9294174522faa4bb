"""The log of a rank's sent values, in files of its node's memory. It outlives the rank's process, however that ends.

A record is a chunk of a value, lines of metrics, or a decision (`log_kinds`). Large values are in slot files,
which the records name. The rank only appends to segments. A segment carries the generation that wrote it and the step
to which that was restored. Records that an earlier generation made after that step are orphans. The rank removes a
segment when no restart and no snapshot on its way to disk needs it. A record does not count if the rank died while it
wrote it.

If the log marks the result of a call as complete, its records are no orphans, and no rank makes them again
(`is_orphan`).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

from rolemesh_checkpoint import log_record
from rolemesh_checkpoint.log_kinds import RecordKind
from rolemesh_checkpoint.log_record import MAX_HOLD, LogRecord, chunk_head
from rolemesh_checkpoint.orphans import Restart, is_orphan
from rolemesh_dataplane.mapping import Bytes
from rolemesh_dataplane.shm import NoSharedMemory, Persist, named, new_file

__all__ = ["SendLog"]

SEGMENT_BYTES: Final = 1 << 20
"""Bytes of a segment, from the fifth of a generation on. The first takes a sixteenth, as do others if memory is short.

This lets many ranks with little to log fit into little memory. A rank that starts again finds room.
"""
_SENT: Final = " of what was sent"
_LESS: Final = "or lower retention.max_bytes"
_CHUNK: Final = RecordKind.CHUNK
_LINE: Final = RecordKind.LINE
_MAGIC: Final = b"rmlog004"
_OPENING = struct.Struct("<8sIIqQB7xq")
"""The fields are: magic, generation, timeline, the restored step, the first record's position, flags, and `until`.

The flags are: the log is complete (1), and copied (2). `until` is the step until whose commit the segment is needed;
`_OPEN` before it is full.
"""
_UNTIL = struct.Struct("<q")
_OPEN: Final = 1 << 62
_FRAME = struct.Struct("<II")
"""The fields are: bytes of the body, and their crc32."""


class _Segment:
    """One file: the generation that wrote it, and the step until which a restart may need it."""

    __slots__ = ("copied", "first", "first_step", "generation", "last_line", "number", "path", "resume", "size",
                 "sure", "timeline", "until")  # fmt: skip

    def __init__(
        self, path: Path, number: int, generation: int, timeline: int, resume: int, first: int, size: int
    ) -> None:
        self.path, self.number, self.generation, self.resume, self.first = path, number, generation, resume, first
        self.timeline, self.size, self.sure, self.copied = timeline, size, True, False
        self.until = -1
        self.last_line = -1
        self.first_step = 1 << 62

    def add(self, kind: int, step: int, hold: int) -> None:
        if kind == _LINE:
            self.last_line = max(self.last_line, step)
            return
        if step + hold > self.until:
            self.until = step + hold
        if step < self.first_step:
            self.first_step = step


class SendLog:
    """The log of one rank. Only that rank writes it; any process may call `read`."""

    def __init__(
        self,
        directory: str | Path,
        role: str,
        rank: int,
        *,
        generation: int = 0,
        timeline: int = 0,
        resume: int = -1,
        copied: bool = False,
        persist: Persist = lambda make: make(),
    ) -> None:
        """Continue after the existing records, as `generation`, restored to step `resume` in `timeline`.

        `found` then has all records of former generations, orphans included: see `is_orphan`. `persist` creates a
        segment; it may wait for memory. `copied`: the existing records are a copy from another node, which may lack the
        newest ones.
        """
        self._persist = persist
        self._directory, self._name = Path(directory), f"log-{role}-{rank}-"
        self._generation, self._timeline, self._resume = generation, timeline, resume
        self._segments: list[_Segment] = []
        self.found: list[LogRecord] = []
        self.position = 0
        """Position of the next record; it only grows."""
        for segment, records in _scan(self._directory, self._name):
            for record in records:
                segment.add(record.kind, record.step, record.hold)
            self._segments.append(segment)
            self.found += records
            self.position = max(self.position, segment.first + len(records))
        self._restarts = [*_restarts(self._segments), Restart(generation, resume, copied)]
        self._copied = copied
        self._began = min((s.first for s in self._segments if s.timeline == timeline), default=self.position)
        self._whole = _whole(self.found, self._began)
        said = {record.generation for record in self.found if record.kind == RecordKind.WHOLE}
        before = [s for s in self._segments if s.generation == generation - 1]
        self.sure = not generation or (not copied and any(s.sure or s.generation in said for s in before))
        """True if the log has everything that former generations may have shown.

        If not, the rank must ask its consumers first.
        """
        self.nbytes = sum(segment.size for segment in self._segments)
        """Bytes of the segments."""
        self._consumers: dict[tuple[int, ...], bytes] = {}
        self._pins: tuple[int, ...] = ()
        self._current: _Segment
        self._map: memoryview
        self._at = self._size = self._made = 0
        self._begin(max((number for number, _ in _files(self._directory, self._name)), default=-1) + 1, 0)

    def is_orphan(self, record: LogRecord) -> bool:
        """Return True if a later generation was restored to a step before that of `record`, so that it makes it again.

        A complete result is no orphan, unless the whole job has gone back since.
        """
        return is_orphan(record, self._restarts, self._whole)

    def is_whole(self, record: LogRecord) -> bool:
        """Return True if `record` is a chunk of a complete result in this timeline."""
        return (
            record.kind in (RecordKind.CHUNK, RecordKind.END)
            and record.position in self._whole
            and not self.is_orphan(record)
        )

    def chunk(
        self,
        edge: int,
        step: int,
        chunk: int,
        last: bool,
        hold: int,
        consumers: tuple[int, ...],
        body: bytes,
        hlen: int,
        count: int,
        *,
        payload: int = -1,
        place: str = "",
    ) -> int:
        """Append a chunk that the rank is about to send. Return its position. `payload` below 0: the payload is new."""
        position, name = self.position, place.encode()
        first, ranks = position if payload < 0 else payload, len(consumers)
        kept = hold if hold < MAX_HOLD else MAX_HOLD
        head = chunk_head(position, step, kept, _CHUNK, last, ranks, edge, chunk, first, hlen, count, len(name))
        self._append(_CHUNK, step, hold, b"".join((head, self._ranks(consumers), name, body)))
        return position

    def end(self, edge: int, step: int, chunk: int, hold: int, consumers: tuple[int, ...]) -> None:
        """Append the mark that ends a value."""
        head = log_record.end(self.position, step, hold, edge, chunk, consumers)
        self._append(RecordKind.END, step, hold, head + self._ranks(consumers))

    def line(self, step: int, encoded: bytes, *, partial: bool = False) -> None:
        """Append lines of metrics up to the one that ends with `step`, or (`partial`) a line's part up to `step`."""
        kind = RecordKind.PARTIAL if partial else RecordKind.LINE
        self._append(kind, step, 1, log_record.lines(self.position, step, 1, encoded, partial=partial))

    def decide(self, scope: str, step: int, hold: int, body: bytes, *, persists: bool = False) -> None:
        """Append a decision at `step`. A restart reads it with `decisions` and decides the same.

        `scope` names the subject of the decision, in at most 255 bytes. A restart may need it until step ``step +
        hold`` is committed. `persists`: persisted snapshots have it too, as long as a restart may need it.
        """
        data = log_record.decision(self.position, step, hold, scope, body, persists=persists)
        self._append(RecordKind.DECISION, step, hold, data)

    def decisions(self, scope: str) -> list[LogRecord]:
        """Return the decisions about `scope` that former generations made in this timeline, in order.

        Those that persisted snapshots have are not among them: they may come from a file that another user wrote, and
        readers of decisions may unpickle.
        """
        found = [record for record in self.ours if record.kind == RecordKind.DECISION and not record.persists]
        return [record for record in found if record.scope == scope]

    def take_found(self) -> tuple[Sequence[LogRecord], list[LogRecord]]:
        """Return `ours` and `found`, once: the log keeps neither."""
        ours, found = self.ours, self.found
        self.found = []
        return ours, found

    @property
    def ours(self) -> Sequence[LogRecord]:
        """The records of former generations in this timeline.

        Decisions of another timeline do not count. The values that the rank chose there cannot be made again, and the
        values that it takes now may be newer.
        """
        return [record for record in self.found if record.position >= self._began]

    def whole(self, call: int, step: int, first: int, hold: int, items: bytes = b"") -> None:
        """Append the mark that the chunks from position `first` on are all that `call` made at `step`, from `items`.

        Records of a former generation in their place are orphans from now on.
        """
        data = log_record.whole(self.position, step, hold, call, self.position - first, items)
        self._append(RecordKind.WHOLE, step, hold, data)
        self.sure = True

    def trim(self, committed: int, published: int, pins: Collection[int] = ()) -> None:
        """Remove unneeded segments: chunks up to the commit, lines up to `published`.

        The snapshots of the steps in `pins` are being persisted, with the values in flight across them.
        """
        kept, self._pins = [], tuple(pins)
        for segment in self._segments:
            if segment is self._current or not self._freed_by(segment, committed, published):
                kept.append(segment)
            else:
                segment.path.unlink(missing_ok=True)
                self.nbytes -= segment.size
        self._segments = kept

    @property
    def where(self) -> Path:
        """The folder of the files."""
        return self._directory

    @property
    def lost(self) -> bool:
        """True if another process has removed the files."""
        return not (self._segments[0].path.exists() and self._current.path.exists())

    def begin_again(self) -> None:
        """Forget all records, because another process has removed the files.

        The caller writes the needed ones again.
        """
        for segment in self._segments:
            segment.path.unlink(missing_ok=True)
        self._segments, self.nbytes = [], 0
        self._begin(self._current.number + 1, 0)

    def awaits_commit(self, step: int) -> bool:
        """Return True if the commit of `step`, with its lines published, would free memory of the log.

        What the pins of the last `trim` keep is not freed by a commit.
        """
        return any(self._freed_by(segment, step, step) for segment in self._segments if segment is not self._current)

    def _freed_by(self, segment: _Segment, committed: int, published: int) -> bool:
        pinned = any(segment.first_step <= pin < segment.until for pin in self._pins)
        return segment.until <= committed and segment.last_line <= published and not pinned

    def close(self) -> None:
        """Unmap; the files stay."""
        self._map = memoryview(b"")

    @staticmethod
    def read(
        directory: str | Path, role: str, rank: int, upto: int | None = None, *, after: int = -_OPEN
    ) -> list[LogRecord]:
        """Return the records before position `upto` (default: all), without orphans. The rank may be writing meanwhile.

        Records that are not needed once step `after` is committed, and lines of metrics, may be missing.
        """
        found = list(_scan(Path(directory), f"log-{role}-{rank}-", after))
        found = [(s, records) for s, records in found if upto is None or s.first < upto]
        restarts = _restarts(segment for segment, _ in found)
        timeline = max((segment.timeline for segment, _ in found), default=0)
        ours = [segment.first for segment, _ in found if segment.timeline == timeline]
        records = [record for _, found_in in found for record in found_in]
        whole = _whole(records, min(ours, default=0))
        return [
            record
            for record in records
            if (upto is None or record.position < upto) and not is_orphan(record, restarts, whole)
        ]

    @staticmethod
    def remove(directory: str | Path, role: str, rank: int) -> None:
        """Remove all segments."""
        for _, path in _files(Path(directory), f"log-{role}-{rank}-"):
            path.unlink(missing_ok=True)

    def _ranks(self, consumers: tuple[int, ...]) -> bytes:
        packed = self._consumers.get(consumers)
        if packed is None:
            packed = self._consumers[consumers] = struct.pack(f"<{len(consumers)}I", *consumers)
        return packed

    def _append(self, kind: int, step: int, hold: int, body: bytes) -> None:
        size = len(body)
        if self._at + _FRAME.size + size > self._size:
            self._map[_OPENING.size - _UNTIL.size : _OPENING.size] = _UNTIL.pack(self._current.until)
            self._begin(self._current.number + 1, size)
        at = self._at
        self._at = end = at + _FRAME.size + size
        self._map[at:end] = _FRAME.pack(size, crc32(body)) + body
        self.position += 1
        self._current.add(kind, step, hold)

    def _begin(self, number: int, room: int) -> None:
        path = self._directory / f"{self._name}{number}"
        least = _OPENING.size + _FRAME.size + room
        sizes = [max(SEGMENT_BYTES >> halved, least) for halved in range(max(0, 4 - self._made), 5)]
        self._made += 1
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._map = self._persist(lambda: _largest(path, sizes).data)
        size = len(self._map)
        opening = _OPENING.pack(
            _MAGIC, self._generation, self._timeline, self._resume, self.position, self.sure | self._copied << 1, _OPEN
        )
        # The magic comes last: a reader takes no notice of a segment whose writer was killed before that.
        self._map[len(_MAGIC) : _OPENING.size] = opening[len(_MAGIC) :]
        self._map[: len(_MAGIC)] = _MAGIC
        self._at, self._size = _OPENING.size, size
        self._current = _Segment(path, number, self._generation, self._timeline, self._resume, self.position, size)
        self._segments.append(self._current)
        self.nbytes += size


def _largest(path: Path, sizes: Sequence[int]) -> Bytes:
    """Create a segment of the first of `sizes` that fits into memory. Raises `NoSharedMemory` if none does."""
    *larger, least = sizes
    for size in larger:
        with suppress(NoSharedMemory):
            return new_file(path, size, _SENT, _LESS, spare=False)
    return new_file(path, least, _SENT, _LESS, spare=False)


def _restarts(segments: Iterable[_Segment]) -> list[Restart]:
    return [Restart(segment.generation, segment.resume, segment.copied) for segment in segments]


def _whole(records: Sequence[LogRecord], first: int) -> frozenset[int]:
    """Return the positions of complete results with their marks, from position `first` on.

    The newest mark of a step counts.
    """
    said = [mark for mark in records if mark.kind == RecordKind.WHOLE and mark.position - mark.made >= first]
    marks = {(mark.call, mark.step): mark for mark in said}.values()
    found = {position for mark in marks for position in range(mark.position - mark.made, mark.position + 1)}
    kinds = RecordKind.CHUNK, RecordKind.END, RecordKind.WHOLE
    return frozenset(r.position for r in records if r.position in found and r.kind in kinds)


def _files(directory: Path, name: str) -> list[tuple[int, Path]]:
    found = [(path.name.removeprefix(name), path) for path in named(directory, name)]
    return sorted((int(number), path) for number, path in found if number.isdigit())


def _scan(directory: Path, name: str, after: int = -_OPEN) -> Iterator[tuple[_Segment, list[LogRecord]]]:
    """Yield the segments in order.

    A segment without a beginning, whose writer died while it created it, has no records. Records of full segments that
    are not needed after step `after` are not read.
    """
    for number, path in _files(directory, name):
        try:
            with path.open("rb", buffering=0) as file:
                data = file.read(_OPENING.size)
                if len(data) < _OPENING.size or not data.startswith(_MAGIC):
                    continue
                _, generation, timeline, resume, first, sure, until = _OPENING.unpack(data)
                data += file.readall() if until > after else b""
        except FileNotFoundError:
            continue
        segment = _Segment(path, number, generation, timeline, resume, first, len(data))
        segment.sure, segment.copied = bool(sure & 1), bool(sure & 2)
        yield segment, list(_records(data, segment, after))


def _records(data: bytes, segment: _Segment, after: int) -> Iterator[LogRecord]:
    at, position = _OPENING.size, segment.first
    while at + _FRAME.size <= len(data):
        length, crc = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        body = data[at : at + length]
        if length < log_record.HEAD_BYTES or len(body) < length or crc32(body) != crc:
            return
        at += length
        found, step, hold = log_record.head_of(body)
        if found != position:
            return
        position += 1
        if step + hold > after:
            yield log_record.parse(body, segment.generation)
