"""The page on which the ranks of a slot see whose turn it is."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.extensions.turns.order import STARTING, Row

__all__ = ["PAGE", "TurnPage"]

PAGE = "turns.page"
"""Key of the page's path in `RankStart.parts`."""

NAME = "rolemesh-turns"


class TurnPage:
    """The rows of a slot's ranks in mapped memory.

    Each rank writes its own row; its agent does while it has no process.
    """

    def __init__(self, path: str, members: Sequence[RankRef]) -> None:
        """Map the page at `path`. `members` are the ranks in the order of their rows."""
        self._rows: Final = {member: row for row, member in enumerate(members)}
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(fd, 16 * len(members))
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd  # while any process has it open, others find the page there
        self.path: Final = f"/proc/{os.getpid()}/fd/{fd}"
        self._fields = memoryview(self._map).cast("q")

    @classmethod
    def create(cls, members: Sequence[RankRef]) -> TurnPage:
        """Return a new page in memory of this process, on which all ranks start. Raises `OSError`.

        Other processes map it by its path while this process has it.
        """
        fd = os.memfd_create(NAME, os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, 16 * len(members))  # a hole that cannot be filled later would be a SIGBUS
            page = cls(f"/proc/{os.getpid()}/fd/{fd}", members)
        finally:
            os.close(fd)
        for member in members:
            page.write(member, Row(STARTING))
        return page

    @classmethod
    def of(cls, pid: int, members: Sequence[RankRef]) -> TurnPage | None:
        """Return the page that the process `pid` has open; None if it has none."""
        with suppress(OSError):
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):
                    if os.readlink(fd).startswith(f"/memfd:{NAME}"):
                        return cls(str(fd), members)
        return None

    def row(self, member: RankRef) -> int:
        """Return the number of a rank's row."""
        return self._rows[member]

    def write(self, member: RankRef, row: Row) -> None:
        """Write a rank's row."""
        at = 2 * self._rows[member]
        self._fields[at + 1] = row.loaded
        self._fields[at] = row.position

    def read(self) -> list[Row]:
        """Return all rows."""
        fields = self._fields
        return [Row(fields[at], bool(fields[at + 1])) for at in range(0, len(fields), 2)]

    def close(self) -> None:
        """Unmap the page. Processes that have mapped it keep it, and no other can map it."""
        self._fields.release()
        self._map.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
