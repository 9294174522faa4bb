"""How answers are printed. Pure: what ranks wrote becomes text that no terminal acts on."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

__all__ = ["FORMATS", "as_csv", "as_json", "as_table"]

WIDEST: Final = 100
"""Maximum number of characters in a cell of a table."""


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield lines of CSV, the names of the columns first. NULL is empty."""
    for row in ([*columns], *()):
        yield _csv_line(row)
    for values in rows:
        yield _csv_line([_text(value) for value in values])


def as_json(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the parts of a list of objects, one object per line. NaN and infinity are null."""
    before = "["
    for row in rows:
        value = dict(zip(columns, map(_plain, row), strict=True))
        yield f"{before}\n{msgspec.json.encode(value, enc_hook=str).decode()}"
        before = ","
    yield "[]\n" if before == "[" else "\n]\n"


def as_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the lines of a table for people: long cells are cut off, control characters are written as escapes."""
    lines = [list(map(_cell, columns)), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(map(str.ljust, line, widths)).rstrip() + "\n"


FORMATS: Final = {"table": as_table, "csv": as_csv, "json": as_json}


def _csv_line(values: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue()


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, list | tuple | dict):
        return msgspec.json.encode(_plain(value), enc_hook=str).decode()
    return str(value)


def _cell(value: Any) -> str:
    shown = f"{value:.6g}" if isinstance(value, float) else _text(value)
    cut = f"{shown[: WIDEST - 1]}…" if len(shown) > WIDEST else shown
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    return value
