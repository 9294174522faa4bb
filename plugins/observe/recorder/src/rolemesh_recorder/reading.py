"""Reads the records in a run's folder, also while they are written. Needs no engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh_recorder.lines import FLOW_FILE, RECORD_DIR, Account, FlowFile, Line, decode, rank_folder
from rolemesh_recorder.parts import part_files, read_part
from rolemesh_recorder.rows import ROWS_DIR, Row

__all__ = ["kept_rows", "read_accounts", "read_flow", "read_record", "record_bytes", "record_ends", "recorded_ranks"]

TAIL_BYTES = 32_768
"""Bytes at the end of a record that have its last account."""


def read_flow(run_dir: Path) -> FlowFile | None:
    """Return the job's flow; None if the recorder has not written it, or wrote another version."""
    try:
        return msgspec.json.decode((run_dir / RECORD_DIR / FLOW_FILE).read_bytes(), type=FlowFile)
    except (OSError, msgspec.MsgspecError):
        return None


def recorded_ranks(run_dir: Path) -> list[RankRef]:
    """Return the ranks that have a record, by role and number."""
    return sorted(_ranks(run_dir / RECORD_DIR))


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
            with path.open("rb") as file:
                for raw in file:
                    if raw.startswith(b'{"k":"account"') and raw.endswith(b"\n"):
                        line = decode(raw)
                        if isinstance(line, Account):
                            yield line
        except OSError:
            continue


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
            with path.open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
                tail = file.read(TAIL_BYTES)
            for raw in tail.split(b"\n")[:-1]:
                if (line := decode(raw)) is not None:
                    end = max(end, line.t + getattr(line, "d", 0))
    except OSError:
        pass
    return begin, end


def kept_rows(run_dir: Path) -> Iterator[tuple[RankRef, Row]]:
    """Yield the kept rows of all ranks, rank by rank, the oldest first. Damaged lines are left out."""
    folder, decoder = run_dir / RECORD_DIR / ROWS_DIR, msgspec.json.Decoder(Row)
    for ref in sorted(_ranks(folder)):
        for path in part_files(folder / f"{ref.role}-{ref.rank}"):
            try:
                with path.open("rb") as file:
                    for raw in file:
                        if raw.endswith(b"\n") and (row := _row(decoder, raw)) is not None:
                            yield ref, row
            except OSError:
                continue


def _row(decoder: msgspec.json.Decoder[Row], raw: bytes) -> Row | None:
    try:
        return decoder.decode(raw)
    except msgspec.MsgspecError:
        return None


def _ranks(folder: Path) -> Iterator[RankRef]:
    if folder.is_dir():
        for path in folder.iterdir():
            role, _, number = path.name.rpartition("-")
            if role and number.isdigit():
                yield RankRef(role, int(number))


def _begin(path: Path) -> int:
    """Return the time of a part's first line with content; 0 if it cannot be read."""
    try:
        lines = (line for line in read_part(path) if not hasattr(line, "pid"))
        return getattr(next(lines, None), "t", 0)
    except OSError:
        return 0
