"""Files of numbered JSON lines, read in pages from any number on. A page costs the same however long the file is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import BinaryIO

import msgspec

from rolemesh.runs.jsonl import UNDECODABLE, open_regular
from rolemesh_runtime.unreadable import unreadable

__all__ = ["PAGE", "PAGE_BYTES", "pages", "start_after"]

PAGE = 512
PAGE_BYTES = 4 << 20
BLOCK = 1 << 16
"""Bytes of a range that is read rather than halved."""


def pages(path: Path, key: str, after: int, count: int = PAGE) -> Iterator[list[bytes]]:
    """Yield the whole lines of the file whose number, at `key`, is above `after`, at most `count` and some MiB at a
    time.

    Numbers grow from line to line. Damaged lines are skipped. A missing file has no lines. Raises `RolemeshError`
    if the file cannot be read.
    """
    try:
        file = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise unreadable(path, error) from error
    with file:
        number = _number(key)
        file.seek(start_after(file, key, after))
        page: list[bytes] = []
        size = 0
        for line in file:
            if not line.endswith(b"\n"):
                break  # it is still being written
            found = number(line)
            if found is None or found <= after:
                continue
            page.append(line)
            size += len(line)
            if len(page) >= count or size >= PAGE_BYTES:
                yield page
                page, size = [], 0
        if page:
            yield page


def start_after(file: BinaryIO, key: str, after: int) -> int:
    """Return where to begin in the file, so that every line with a number above `after` is read, and few others are."""
    number = _number(key)
    low, high = 0, os.fstat(file.fileno()).st_size
    while high - low > BLOCK:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline()
        at = file.tell()
        found = None
        while found is None and at < high:
            line = file.readline()
            if not line:
                break
            found, at = number(line), at + len(line)
        if found is not None and found <= after:
            low = at
        else:
            high = middle
    return low


@cache
def _number(key: str) -> Callable[[bytes], int | None]:
    """Return a function that reads only the number of a line; None for a damaged line."""
    decode = msgspec.json.Decoder(msgspec.defstruct("Numbered", [(key, int)])).decode

    def number(line: bytes) -> int | None:
        try:
            return int(getattr(decode(line), key))
        except (*UNDECODABLE, ValueError):
            return None

    return number
