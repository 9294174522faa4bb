"""The page on which the ranks of a slot see whose turn it is."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rolemesh.protocol.turns import STARTING, Row
from rolemesh.rank.board import new_file

__all__ = ["TurnPage"]


class TurnPage:
    """The rows of a slot's ranks in a mapped file. Each rank writes its own; its agent, while it has no process."""

    def __init__(self, path: str | Path, members: Sequence[tuple[str, int]]) -> None:
        """Map the file. `members` are the ranks in the order of their rows."""
        self._rows: Final = {member: row for row, member in enumerate(members)}
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(fd, 16 * len(members))
        finally:
            os.close(fd)
        self._fields = memoryview(self._map).cast("q")

    @classmethod
    def create(
        cls, path: Path, members: Sequence[tuple[str, int]], make: Callable[[Path, bytes], None] = new_file
    ) -> TurnPage:
        """Make the file, with everybody starting; `make` puts it there. Raises `OSError`."""
        make(path, bytes(16 * len(members)))
        page = cls(path, members)
        for member in members:
            page.write(member, Row(STARTING))
        return page

    def row(self, member: tuple[str, int]) -> int:
        """The number of a rank's row."""
        return self._rows[member]

    def write(self, member: tuple[str, int], row: Row) -> None:
        """Write a rank's row."""
        at = 2 * self._rows[member]
        self._fields[at + 1] = row.loaded
        self._fields[at] = row.position

    def read(self) -> list[Row]:
        """All rows."""
        fields = self._fields
        return [Row(fields[at], bool(fields[at + 1])) for at in range(0, len(fields), 2)]

    def close(self) -> None:
        """Unmap; the file stays."""
        self._fields.release()
        self._map.close()
