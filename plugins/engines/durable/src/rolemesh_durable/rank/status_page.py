"""A rank's status page, which it shares with its agent: on it it writes where it is, without a system call."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from rolemesh_durable.protocol.rank.page import FIELDS, IDLE

__all__ = ["Position", "StatusPage", "new_file"]

_EDGES = mmap.PAGESIZE // 8 - FIELDS
"""For so many edges there is room on the page."""


class Position(NamedTuple):
    """Where a rank is. -1 stands for none; `since_ns` is `time.monotonic_ns` of the last change of phase.

    `snapshot` is the step of its newest complete snapshot, `busy_ns` how long it has computed since its start,
    `refused` how many connections its transports have refused, `short` how many bytes of shared memory it waits for.
    `stopping` is its agent's: a SIGTERM that follows is the job's end, and until then (`time.monotonic_ns`) the
    processes that the rank has started may take to end by it. `done` of `total` is what the operator that runs has said
    of its progress. `granted` is the agent's as well: the last step that the rank may have been told it may run.
    `layout` is the number of the one that it has taken up. `computed_ns` is as `busy_ns`, which tells of whole steps,
    of all calls that have ended.
    """

    pid: int
    generation: int
    finished: int
    step: int
    op: int
    phase: int
    edge: int
    since_ns: int
    snapshot: int
    busy_ns: int
    refused: int
    short: int = 0
    stopping: int = 0
    done: int = -1
    total: int = 0
    granted: int = -1
    layout: int = 0
    computed_ns: int = 0


class StatusPage:
    """Int64 fields in a mapped file. One process writes; a reader may see fields a few nanoseconds apart."""

    def __init__(self, path: str | Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(fd, mmap.PAGESIZE)
        finally:
            os.close(fd)
        self.fields = memoryview(self._map).cast("q")
        """The fields in the order of `Position`: the loop writes here directly."""

    @classmethod
    def create(cls, path: str | Path, make: Callable[[Path, bytes], None] | None = None) -> StatusPage:
        """Make the file with nothing on it; for the agent, before the rank exists. Who has mapped an older file of that
        name keeps seeing that one. `make` puts it there, by default `new_file`. Raises `OSError`."""
        (make or new_file)(Path(path), _EMPTY)
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> StatusPage:
        """Map the file that the agent has made; for the rank."""
        return cls(path)

    def write(self, position: Position) -> None:
        """Write all fields."""
        for i, value in enumerate(position):
            self.fields[i] = value

    def read(self) -> Position:
        """What the rank has written last."""
        return Position(*self.fields[:FIELDS])

    def waited(self, edge: int, ns: int) -> None:
        """The rank has waited so long for what comes along an edge, or until its consumer takes something."""
        if 0 <= edge < _EDGES:
            self.fields[FIELDS + edge] += ns

    def waits(self, edges: Iterable[int]) -> dict[int, int]:
        """How long it has waited on each of these edges since its start, in nanoseconds; without what still lasts."""
        return {edge: self.fields[FIELDS + edge] for edge in edges if edge < _EDGES}

    def close(self) -> None:
        """Unmap; the file stays."""
        self.fields.release()
        self._map.close()


_EMPTY = struct.pack(f"<{FIELDS}q", *Position(0, 0, -1, -1, -1, IDLE, -1, 0, -1, 0, 0)).ljust(mmap.PAGESIZE, b"\0")


def new_file(path: Path, data: bytes) -> None:
    """Put a new file with `data` at `path`. All of it is there, so that whoever maps it does not die of a full disk."""
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, len(data))
        os.pwrite(fd, data, 0)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
