"""Reads the records in a run's folder, also while they are written. Needs no engine."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh_recorder.lines import FLOW_FILE, RECORD_DIR, Account, FlowFile, Head, Line, decode, rank_folder
from rolemesh_recorder.parts import open_recorded, part_files, read_part
from rolemesh_recorder.rows import ROWS_DIR, Row
from rolemesh_runtime.run_files import content_in, names_in

__all__ = [
    "decode_row",
    "kept_files",
    "kept_rows",
    "latest_head",
    "latest_lines",
    "latest_rows",
    "read_accounts",
    "read_flow",
    "read_record",
    "read_rows",
]
__all__ += ["record_bytes", "record_ends", "recorded_ranks"]

_ROW = msgspec.json.Decoder(Row)
ACCOUNT = b'{"k":"account"'
TAIL_BYTES = 32_768
"""Bytes at the end of a record that have its last account."""
LATEST_BYTES = 4 << 20
"""Bytes of kept rows that `latest_rows` reads, divided among the ranks."""


def read_flow(run_dir: Path) -> FlowFile | None:
    """Return the job's flow; None if the recorder has not written it, or wrote another version."""
    try:
        return msgspec.json.decode(content_in(run_dir, RECORD_DIR, FLOW_FILE), type=FlowFile)
    except (OSError, *UNDECODABLE):
        return None


def recorded_ranks(run_dir: Path) -> list[RankRef]:
    """Return the ranks that have a record, by role and number."""
    return sorted(_ranks(run_dir, RECORD_DIR))


def read_record(run_dir: Path, role: str, rank: int, after: int = 0) -> Iterator[Line]:
    """Yield the lines of a rank's record, in the order in which they were written.

    `after`: leave out parts whose successor begins before this time, in µs since 1970. A part that the recorder
    replaces meanwhile is left out.
    """
    for path in _parts(run_dir, role, rank, after):
        try:
            yield from read_part(path)
        except OSError:
            continue


def read_accounts(run_dir: Path, role: str, rank: int, after: int = 0) -> Iterator[Account]:
    """Yield only the accounts of `read_record`. This is several times as fast, because other lines are not decoded."""
    for path in _parts(run_dir, role, rank, after):
        try:
            with open_recorded(path) as file:
                for raw in file:
                    if raw.startswith(ACCOUNT) and raw.endswith(b"\n"):
                        line = decode(raw)
                        if isinstance(line, Account):
                            yield line
        except OSError:
            continue


def latest_head(run_dir: Path, role: str, rank: int) -> Head | None:
    """Return the head of the process that wrote the newest part of a rank's record; None if there is none."""
    for path in reversed(part_files(rank_folder(run_dir, role, rank))):
        with suppress(OSError):
            head = next(read_part(path), None)
            if isinstance(head, Head):
                return head
    return None


def record_bytes(run_dir: Path, role: str, rank: int, after: int = 0) -> int:
    """Return the number of bytes that `read_record` would read."""
    with suppress(OSError):
        return sum(path.stat().st_size for path in _parts(run_dir, role, rank, after))
    return 0


def _parts(run_dir: Path, role: str, rank: int, after: int) -> list[Path]:
    files = part_files(rank_folder(run_dir, role, rank))
    if not after or len(files) < 2:
        return files
    begins = [_begin(path) for path in files]
    return files[max((at for at, begin in enumerate(begins) if begin <= after), default=0) :]


def record_ends(run_dir: Path, role: str, rank: int) -> tuple[int, int]:
    """Return when a rank's record begins and ends, in µs since 1970, from its first and its last lines.

    The begin of an empty record is a very late time, and its end is 0.
    """
    begin, end = 1 << 62, 0
    files = part_files(rank_folder(run_dir, role, rank))
    try:
        for path in files[:1]:
            begin = next((line.t for line in read_part(path)), begin)
        for path in files[-1:]:
            with open_recorded(path) as file:
                file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
                tail = file.read(TAIL_BYTES)
            for raw in reversed(tail.split(b"\n")[:-1]):
                line = decode(raw)
                end = max(end, line.t + getattr(line, "d", 0)) if line is not None else end
                if isinstance(line, Account):
                    break  # what is before it ended earlier
    except OSError:
        pass
    return begin, end


def latest_lines(run_dir: Path, role: str, rank: int, after: int) -> list[Line]:
    """Return the lines of a rank's record since the account that covers `after`, in µs since 1970.

    Unlike `read_record`, this reads a record from its end, so the price does not depend on the length of the run.
    """
    found: list[list[Line]] = []
    for path in reversed(part_files(rank_folder(run_dir, role, rank))):
        try:
            lines, complete = _end_of(path, after)
        except OSError:
            continue
        found.append(lines)
        if complete:
            break
    return [line for lines in reversed(found) for line in lines]


def _end_of(path: Path, after: int) -> tuple[list[Line], bool]:
    """Return the lines of a part since the account that covers `after`, and whether the part has such an account."""
    with open_recorded(path) as file:
        size, wanted = file.seek(0, 2), TAIL_BYTES // 4
        while True:
            wanted = min(size, 2 * wanted)
            file.seek(size - wanted)
            raws = file.read(wanted).split(b"\n")[:-1]
            if wanted < size:
                del raws[:1]  # its beginning may be missing
            at = _begin_of(raws, after)
            if at is not None or wanted == size:
                lines = (decode(raw) for raw in raws[at or 0 :])
                return [line for line in lines if line is not None], at is not None


def _begin_of(raws: Sequence[bytes], after: int) -> int | None:
    """Return the place of the first line of the account that covers `after`; None if no account begins so early."""
    places = [at for at, raw in enumerate(raws) if raw.startswith(ACCOUNT)]
    found = bisect_right(places, after, key=lambda at: getattr(decode(raws[at]), "t", 0))
    if not found:
        return None
    return places[found - 2] + 1 if found > 1 else 0  # stretches come before the account in which they end


def kept_files(run_dir: Path) -> Iterator[tuple[RankRef, Path]]:
    """Yield the files of kept rows of all ranks, rank by rank, the oldest first."""
    for ref in sorted(_ranks(run_dir, RECORD_DIR, ROWS_DIR)):
        for path in part_files(run_dir / RECORD_DIR / ROWS_DIR / f"{ref.role}-{ref.rank}"):
            yield ref, path


def read_rows(path: Path, after: int = 0) -> Iterator[tuple[int, int, Row | None]]:
    """Yield each complete line of a file of kept rows: its begin and its end in bytes, and its row; None if damaged.

    `after`: where to begin, in bytes. Raises `OSError`.
    """
    with open_recorded(path) as file:
        file.seek(after)
        for raw in file:
            if raw.endswith(b"\n"):
                begin, after = after, after + len(raw)
                yield begin, after, decode_row(raw)


def kept_rows(run_dir: Path) -> Iterator[tuple[RankRef, Row]]:
    """Yield the kept rows of all ranks, rank by rank, the oldest first. Damaged lines are left out."""
    for ref, path in kept_files(run_dir):
        with suppress(OSError):
            for _, _, row in read_rows(path):
                if row is not None:
                    yield ref, row


def latest_rows(run_dir: Path) -> list[Row]:
    """Return the newest kept rows of all ranks: those at the end of each rank's newest file."""
    newest = dict(kept_files(run_dir))
    found = []
    for path in newest.values():
        with suppress(OSError), open_recorded(path) as file:
            size = file.seek(0, 2)
            begin = max(0, size - LATEST_BYTES // len(newest))
            file.seek(begin)
            lines = file.read(size - begin).split(b"\n")[bool(begin) : -1]  # the first one may lack its beginning
            found += [row for line in lines if (row := decode_row(line)) is not None]
    return found


def decode_row(line: bytes) -> Row | None:
    """Return the kept row of a line; None if the line is damaged."""
    try:
        return _ROW.decode(line)
    except UNDECODABLE:
        return None


def _ranks(run_dir: Path, *names: str) -> Iterator[RankRef]:
    with suppress(OSError):
        for name in names_in(run_dir, *names):
            role, _, number = name.rpartition("-")
            if role and number.isdecimal():
                yield RankRef(role, int(number))


def _begin(path: Path) -> int:
    """Return the time of a part's first line with content; 0 if it cannot be read."""
    try:
        with open_recorded(path) as file:
            lines = (decode(raw) for raw in file if raw.endswith(b"\n"))  # the part's other lines stay as they are
            return next((line.t for line in lines if line is not None and not isinstance(line, Head)), 0)
    except OSError:
        return 0
