"""The log of what a rank has sent, in files of its node's memory: it outlives the rank's process, however that ends.

A record is a chunk of a value, lines of metrics, or which value was taken where there was a choice. Large values lie
in slot files and are named here. Segments are only appended to and carry the generation that wrote them and the step it
was restored to, so what an earlier generation had made after that step is told apart: an orphan. A segment goes when
the commit, and what is being persisted, leave nothing of it that could be needed. A record that was being written when
the rank died does not count.

What a call has made is no orphan where the log says that it is whole: then it is not made again (`is_orphan`).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from rolemesh_durable.checkpoint.orphans import Restart, is_orphan
from rolemesh_durable.dataplane.codec import Buffer, flat_buffers, unflatten
from rolemesh_durable.dataplane.places import slots_of
from rolemesh_durable.dataplane.shm import Persist, named, new_file
from rolemesh_durable.dataplane.slot_reader import SlotReader
from rolemesh_durable.protocol.log_kinds import ANSWERED, ASKED, CHOICE, CHUNK, END, LINE, NOTE, PARTIAL, TAKEN, WHOLE

__all__ = ["LogRecord", "SendLog"]

KEY_BYTES: Final = 16

SEGMENT_BYTES: Final = 1 << 20
"""A segment, from the fifth of a generation on; the first takes a sixteenth, so that many ranks with little to say fit
into little memory, and one that starts again finds room."""
_MAGIC: Final = b"rmlog003"
_OPENING = struct.Struct("<8sIIqQB7xq")
"""magic, generation, timeline, the step that the generation was restored to, position of the first record, whether
the log is sure (1) and copied (2), until which step is committed the segment is needed: `_OPEN` before it is full."""
_UNTIL = struct.Struct("<q")
_OPEN: Final = 1 << 62
_FRAME = struct.Struct("<II")
"""bytes of the body, their crc32."""
_BODY = struct.Struct("<QBBHIqIIqIIH")
"""position, kind, last, consumers, edge, step, chunk, hold, payload, header's bytes, buffers, bytes of the place."""
_MAX_HOLD: Final = (1 << 32) - 1


class LogRecord(msgspec.Struct, frozen=True, gc=False):
    """One record, of a kind of `rolemesh_durable.protocol.log_kinds`.

    `hold`: what was made at `step` may be needed until ``step + hold`` is committed.

    `payload` is the position of the first record with the same payload. `body` is what `codec.flatten` made:
    with the buffers inside, or without them if they lie at `place`, in slots. Of lines of metrics it is the encoded
    block.
    """

    kind: int
    position: int
    generation: int
    edge: int
    step: int
    chunk: int
    last: bool
    hold: int
    consumers: tuple[int, ...]
    payload: int
    hlen: int
    count: int
    place: str
    body: bytes

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each buffer of a chunk."""
        return unflatten(self.body, 0, self.hlen, self.count)[1]

    @property
    def slots(self) -> tuple[str, ...]:
        """The files that the buffers of a chunk lie in, if they are large."""
        return slots_of(self.place)

    def load(self, directory: str | Path) -> tuple[bytes, list[Buffer]]:
        """Header and buffers of a chunk, for `codec.decode`; `directory` has the slot files."""
        header, sizes, rest = unflatten(self.body, 0, self.hlen, self.count)
        if self.place:
            return bytes(header), SlotReader(directory).read(self.place, sizes)
        return bytes(header), flat_buffers(self.body, rest, sizes)


class _Segment:
    """What is known of one file: whose it is, and until when it is needed."""

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
        if kind == LINE:
            self.last_line = max(self.last_line, step)
            return
        if step + hold > self.until:
            self.until = step + hold
        if step < self.first_step:
            self.first_step = step


class SendLog:
    """The log of one rank, which alone writes it. `read` is for everybody, at any time."""

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
        """Go on behind what is there, as `generation`, restored to the state after step `resume` in `timeline`.

        `found` then has all records of former generations, orphans included: see `is_orphan`. `persist` is how a
        segment is made; it may wait for memory. `copied`: what is there is a copy that another node had, which may lack
        what was written last.
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
        said = {record.generation for record in self.found if record.kind == WHOLE}
        before = [s for s in self._segments if s.generation == generation - 1]
        self.sure = not generation or (not copied and any(s.sure or s.generation in said for s in before))
        """Whether all is here that former generations may have shown; else one must ask who has seen what, first."""
        self.nbytes = sum(segment.size for segment in self._segments)
        """What the segments take."""
        self._consumers: dict[tuple[int, ...], bytes] = {}
        self._current: _Segment
        self._map: memoryview
        self._at = self._size = self._made = 0
        self._begin(max((number for number, _ in _files(self._directory, self._name)), default=-1) + 1, 0)

    def is_orphan(self, record: LogRecord) -> bool:
        """Whether a later generation was restored to a step before that of `record`, so that it is made again.

        What is whole is not, unless the whole job has gone back since.
        """
        return is_orphan(record, self._restarts, self._whole)

    def is_whole(self, record: LogRecord) -> bool:
        """Whether `record` is a chunk of a call that is whole, in this timeline."""
        return record.kind in (CHUNK, END) and record.position in self._whole and not self.is_orphan(record)

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
        """Append a chunk that is about to be sent; returns its position. `payload` below 0: it is a new one."""
        position = self.position
        name, kept, first = place.encode(), min(hold, _MAX_HOLD), position if payload < 0 else payload
        head = _BODY.pack(position, CHUNK, last, len(consumers), edge, step, chunk, kept, first, hlen, count, len(name))
        self._append(CHUNK, step, hold, b"".join((head, self._ranks(consumers), name, body)))
        return position

    def end(self, edge: int, step: int, chunk: int, hold: int, consumers: tuple[int, ...]) -> None:
        """Append the mark that no chunk follows."""
        head = _BODY.pack(self.position, END, 1, len(consumers), edge, step, chunk, min(hold, _MAX_HOLD), -1, 0, 0, 0)
        self._append(END, step, hold, head + self._ranks(consumers))

    def line(self, step: int, encoded: bytes, *, partial: bool = False) -> None:
        """Append lines of metrics up to that which ends with `step`, or (`partial`) what has been gathered up to it."""
        kind = PARTIAL if partial else LINE
        self._note(kind, step, body=encoded)

    def choice(self, edge: int, step: int, age: int, hold: int) -> None:
        """Append that the call at the end of `edge` takes at `step` the value that is `age` steps old."""
        self._note(CHOICE, step, hold, edge, age)

    @property
    def ours(self) -> Sequence[LogRecord]:
        """What former generations have written in this timeline. What a rank had chosen in another one does not hold:
        what it chose from may never be made again, and what it takes now may be newer."""
        return [record for record in self.found if record.position >= self._began]

    def call(self, step: int, rank: int, hold: int, key: bytes) -> None:
        """Append that the call `key` (16 bytes) is about to leave for `rank`."""
        self._note(ASKED, step, hold, number=rank, body=key)

    def answer(self, step: int, hold: int, key: bytes, frame: bytes) -> None:
        """Append the answer to the call `key`."""
        self._note(ANSWERED, step, hold, body=b"".join((key, frame)))

    def calls(self) -> tuple[dict[bytes, int], dict[bytes, bytes], int]:
        """What former generations have written of calls, by key: the rank that was asked last, and the answers; and the
        newest step of them."""
        asked = {record.body: record.chunk for record in self.ours if record.kind == ASKED}
        answers = {r.body[:KEY_BYTES]: r.body[KEY_BYTES:] for r in self.ours if r.kind == ANSWERED}
        return asked, answers, max((r.step for r in self.ours if r.kind == ASKED), default=-1)

    def taken(self, edge: int, step: int, encoded: bytes) -> None:
        """Append which items the call at the end of `edge` takes at `step`."""
        self._note(TAKEN, step, edge=edge, body=encoded)

    def note(self, step: int, encoded: bytes) -> None:
        """Append what an operator has decided at `step`."""
        self._note(NOTE, step, body=encoded)

    def notes(self, resume: int) -> list[bytes]:
        """What former generations have noted after step `resume`, in order."""
        return [record.body for record in self.ours if record.kind == NOTE and record.step > resume]

    def whole(self, call: int, step: int, first: int, hold: int, items: bytes = b"") -> None:
        """Append that the chunks from position `first` on are all that `call` has made at `step`, of `items`. What a
        former generation had made in their place is an orphan from now on."""
        self._note(WHOLE, step, hold, call, self.position - first, items)
        self.sure = True

    def _note(self, kind: int, step: int, hold: int = 1, edge: int = 0, number: int = 0, body: bytes = b"") -> None:
        """Append what is for no consumer; `number` is the record's `chunk`."""
        head = _BODY.pack(self.position, kind, 1, 0, edge, step, number, min(hold, _MAX_HOLD), -1, 0, 0, 0)
        self._append(kind, step, hold, head + body)

    def trim(self, committed: int, published: int, pins: Collection[int] = ()) -> None:
        """Remove the segments that nobody needs: chunks up to the commit, lines up to `published`.

        The snapshots of the steps in `pins` are being persisted, with what was made by then and held after.
        """
        kept = []
        for segment in self._segments:
            needed = (
                segment is self._current
                or segment.until > committed
                or segment.last_line > published
                or any(segment.first_step <= pin < segment.until for pin in pins)
            )
            if needed:
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
        """Whether somebody has removed the files."""
        return not (self._segments[0].path.exists() and self._current.path.exists())

    def begin_again(self) -> None:
        """Forget what was written: its files are gone. What is still needed is to be written again."""
        for segment in self._segments:
            segment.path.unlink(missing_ok=True)
        self._segments, self.nbytes = [], 0
        self._begin(self._current.number + 1, 0)

    def awaits_commit(self, step: int) -> bool:
        """Whether the commit of `step`, and the lines up to it being published, would free something here."""
        oldest = self._segments[0]
        return oldest is not self._current and max(oldest.until, oldest.last_line) <= step

    def close(self) -> None:
        """Unmap; the files stay."""
        self._map = memoryview(b"")

    @staticmethod
    def read(
        directory: str | Path, role: str, rank: int, upto: int | None = None, *, after: int = -_OPEN
    ) -> list[LogRecord]:
        """The records before position `upto` (default: all), without orphans. The rank may be writing meanwhile.

        What is not needed once step `after` is committed, and lines of metrics, may be left out.
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
        size = max(SEGMENT_BYTES >> max(0, 4 - self._made), _OPENING.size + _FRAME.size + room)
        self._made += 1
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._map = self._persist(
            lambda: new_file(path, size, " of what was sent", "or lower edges.retention.max_bytes", spare=False).data
        )
        opening = _OPENING.pack(
            _MAGIC, self._generation, self._timeline, self._resume, self.position, self.sure | self._copied << 1, _OPEN
        )
        self._map[: _OPENING.size] = opening
        self._at, self._size = _OPENING.size, size
        self._current = _Segment(path, number, self._generation, self._timeline, self._resume, self.position, size)
        self._segments.append(self._current)
        self.nbytes += size


def _restarts(segments: Iterable[_Segment]) -> list[Restart]:
    return [Restart(segment.generation, segment.resume, segment.copied) for segment in segments]


def _whole(records: Sequence[LogRecord], first: int) -> frozenset[int]:
    """The positions of what is whole, from position `first` on, with the marks that say so: of a call's step the
    newest."""
    said = [mark for mark in records if mark.kind == WHOLE and mark.position - mark.chunk >= first]
    marks = {(mark.edge, mark.step): mark for mark in said}.values()
    found = {position for mark in marks for position in range(mark.position - mark.chunk, mark.position + 1)}
    return frozenset(r.position for r in records if r.position in found and r.kind in (CHUNK, END, WHOLE))


def _files(directory: Path, name: str) -> list[tuple[int, Path]]:
    found = [(path.name.removeprefix(name), path) for path in named(directory, name)]
    return sorted((int(number), path) for number, path in found if number.isdigit())


def _scan(directory: Path, name: str, after: int = -_OPEN) -> Iterator[tuple[_Segment, list[LogRecord]]]:
    """The segments in their order; one that has no beginning (its writer died making it) has no records, and of those
    that are full and not needed after step `after` none are read."""
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
        if length < _BODY.size or len(body) < length or crc32(body) != crc:
            return
        at += length
        fields = _BODY.unpack_from(body)
        if fields[0] != position:
            return
        position += 1
        if fields[5] + fields[7] > after:
            yield _parse(body, segment.generation, *fields)


def _parse(
    body: bytes, generation: int, position: int, kind: int, last: int, ranks: int, edge: int, step: int, chunk: int,
    hold: int, payload: int, hlen: int, count: int, name: int,
) -> LogRecord:  # fmt: skip
    consumers = struct.unpack_from(f"<{ranks}I", body, _BODY.size)
    at = _BODY.size + 4 * ranks
    place = body[at : at + name].decode()
    rest = body[at + name :]
    return LogRecord(
        kind, position, generation, edge, step, chunk, bool(last), hold, consumers, payload, hlen, count, place, rest
    )
