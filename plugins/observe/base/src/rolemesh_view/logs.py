"""Lines of logs: the end of one, or those with a text. Reads a bounded part of each file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from rolemesh.runs.run import LOGS_DIR
from rolemesh_runtime.run_files import open_in

__all__ = ["SEARCH_BYTES", "TAIL_BYTES", "Hit", "exceeds", "search", "tail"]

TAIL_BYTES = 100_000
SEARCH_BYTES = 50_000_000
"""Bytes at the end of a log that a search reads."""
LONGEST = 100_000


class Hit(NamedTuple):
    """A line of the log `file`."""

    file: str
    text: str


def tail(path: Path, size: int = TAIL_BYTES) -> str:
    """Return the last bytes of a log as text, from the begin of a line; "" if it cannot be read."""
    try:
        with open_in(path.parents[1], LOGS_DIR, path.name) as file:
            end = file.seek(0, 2)
            file.seek(max(0, end - size))
            data = file.read(size)
    except OSError:
        return ""
    if end > size:
        data = data.partition(b"\n")[2] or data
    return data.decode(errors="replace")


def exceeds(path: Path, size: int) -> bool:
    """Return whether a log has more than `size` bytes, so that `tail` or `search` leave out its beginning."""
    with suppress(OSError):
        return path.stat().st_size > size
    return False


def search(paths: Iterable[Path], text: str, most: int = 500) -> list[Hit]:
    """Return the first `most` lines with `text`, in any case of letters."""
    return list(islice((hit for path in paths for hit in _hits(path, text.lower())), most))


def _hits(path: Path, text: str) -> Iterator[Hit]:
    try:
        with open_in(path.parents[1], LOGS_DIR, path.name) as file:
            file.seek(max(0, file.seek(0, 2) - SEARCH_BYTES))
            while raw := file.readline(LONGEST):
                line = raw.decode(errors="replace").rstrip("\n")
                if text in line.lower():
                    yield Hit(path.name, line)
    except OSError:
        return
