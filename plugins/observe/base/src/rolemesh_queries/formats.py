"""How answers are printed. Pure: what ranks wrote becomes text that no terminal acts on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

__all__ = ["FORMATS", "as_csv", "as_json", "as_table"]

WIDEST: Final = 100
"""Maximum number of characters in a cell of a table."""
_JSON = msgspec.json.Encoder(enc_hook=str, decimal_format="number")
_TO_QUOTE = re.compile('[,"\\r\\n]')


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield lines of CSV as DuckDB writes them, the names of the columns first.

    NULL is empty, an empty text is ``""``.
    """
    yield _csv_line(columns)
    for values in rows:
        yield _csv_line([None if value is None else _text(value) for value in values])


def as_json(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the parts of a list of objects, one object per line. NaN and infinity are null.

    Of columns with the same name, later ones get a number: ``a``, ``a_2``.
    """
    before, names = "[", _distinct(columns)
    for row in rows:
        value = dict(zip(names, map(_plain, row), strict=True))
        yield f"{before}\n{_JSON.encode(value).decode()}"
        before = ","
    yield "[]\n" if before == "[" else "\n]\n"


def as_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the lines of a table for people: long cells are cut off, control characters are written as escapes."""
    lines = [list(map(_cell, columns)), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(map(str.ljust, line, widths)).rstrip() + "\n"


FORMATS: Final = {"table": as_table, "csv": as_csv, "json": as_json}


def _distinct(columns: Sequence[str]) -> list[str]:
    names: dict[str, None] = {}
    for column in columns:
        name, number = column, 1
        while name in names or (number > 1 and name in columns):
            number += 1
            name = f"{column}_{number}"
        names[name] = None
    return list(names)


def _csv_line(values: Sequence[str | None]) -> str:
    cells = ("" if value is None else _quoted(value) for value in values)
    return ",".join(cells) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if not text or _TO_QUOTE.search(text) else text


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, list | tuple | dict):
        return _JSON.encode(_plain(value)).decode()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        days, time = value.days, str(value - timedelta(value.days)).zfill(8 if not value.microseconds else 15)
        parts = [f"{days} day{'s' * (abs(days) != 1)}"] * bool(days) + [time] * bool(value % timedelta(1) or not days)
        return " ".join(parts)
    if isinstance(value, bytes):
        return "".join(chr(each) if 32 <= each < 127 and each != 92 else f"\\x{each:02X}" for each in value)
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
