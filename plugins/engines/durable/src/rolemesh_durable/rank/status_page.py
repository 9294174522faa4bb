"""The status page that a rank shares with its agent: the rank writes its position there without a system call."""

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
"""Number of edges for which there is room on the page."""


class Position(NamedTuple):
    """The position of a rank. -1 stands for none.

    - `since_ns`: `time.monotonic_ns` of the last change of phase.
    - `snapshot`: the step of its newest complete snapshot.
    - `busy_ns`: its time in operators since its start, in whole steps.
    - `refused`: the number of connections that its transports have refused.
    - `short`: the bytes of shared memory that it waits for.
    - `stopping`: written by the agent. A SIGTERM that follows means the job's end. The rank's child processes have
      until this time (`time.monotonic_ns`) to end.
    - `done`, `total`: the progress that the running operator reports.
    - `granted`: written by the agent. The last step that the rank may have been allowed to run.
    - `layout`: the number of the layout that it has taken up.
    - `computed_ns`: as `busy_ns`, but it includes all calls that have ended.
    - `calls`: the number of calls of other roles that the rank has begun to run, in all its lives.
    - `answered`: the number of answers that the running operator's calls have got.
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
    calls: int = 0
    answered: int = 0


class StatusPage:
    """Int64 fields in a mapped file. One process writes; a reader may see fields a few nanoseconds apart."""

    def __init__(self, path: str | Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(fd, mmap.PAGESIZE)
        finally:
            os.close(fd)
        self.fields = memoryview(self._map).cast("q")
        """The fields in the order of `Position`. The loop writes here directly."""

    @classmethod
    def create(cls, path: str | Path, make: Callable[[Path, bytes], None] | None = None) -> StatusPage:
        """Create an empty page, in the agent, before the rank exists. Raises `OSError`.

        A process that has mapped an older file of that name keeps that one. `make` creates the file, by default
        `new_file`.
        """
        (make or new_file)(Path(path), _EMPTY)
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> StatusPage:
        """Map the file that the agent has created, in the rank."""
        return cls(path)

    def write(self, position: Position) -> None:
        """Write all fields."""
        for i, value in enumerate(position):
            self.fields[i] = value

    def read(self) -> Position:
        """Return what the rank has written last."""
        return Position(*self.fields[:FIELDS])

    def waited(self, edge: int, ns: int) -> None:
        """Count a wait for an edge's value, or for a consumer that takes one."""
        if 0 <= edge < _EDGES:
            self.fields[FIELDS + edge] += ns

    def waits(self, edges: Iterable[int]) -> dict[int, int]:
        """Return the nanoseconds that the rank waited on each of these edges, without the present wait."""
        return {edge: self.fields[FIELDS + edge] for edge in edges if edge < _EDGES}

    def close(self) -> None:
        """Unmap; the file stays."""
        self.fields.release()
        self._map.close()


_EMPTY = struct.pack(f"<{FIELDS}q", *Position(0, 0, -1, -1, -1, IDLE, -1, 0, -1, 0, 0)).ljust(mmap.PAGESIZE, b"\0")


def new_file(path: Path, data: bytes) -> None:
    """Put a new file with `data` at `path`, with its full size, so that no process that maps it dies of a full disk."""
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
