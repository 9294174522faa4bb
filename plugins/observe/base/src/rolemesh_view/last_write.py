"""When a run's folder was last written, as far as its events, its metrics and the records of its ranks tell."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rolemesh.runs.run import EVENTS_FILE, METRICS_FILE
from rolemesh_recorder.lines import rank_folder
from rolemesh_recorder.parts import part_files
from rolemesh_recorder.reading import recorded_ranks

__all__ = ["QUIET_S", "LastWrite"]

QUIET_S = 120.0
"""Seconds without a write after which pages say so. A rank writes its record every 0.5 s, also while it waits.

A file system that is shared by machines may show the time of a write a minute later.
"""
LOOK_S = 10.0
"""Seconds since the last write of the file that changed last, below which nobody looks at the others."""
Stamp = tuple[str, int, int]


class LastWrite:
    """Watches the files of the run in `path`, for one thread at a time.

    A write shows as a change of a file's stamp. The time of a write counts only within the time between two looks, so a
    step of the clock changes an age only once, and never makes one negative.
    """

    def __init__(
        self, path: Path, *, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._wall, self._monotonic = path, wall, monotonic
        self._stamps: dict[Path, Stamp] = {}
        self._last: Path | None = None
        """The file that changed last, or the folder of a rank's record."""
        self._written = self._looked = float("-inf")

    def age(self) -> float | None:
        """Return the seconds since the last write; None if no rank has a record."""
        now = self._monotonic()
        known = _stamp(self._last) if self._last is not None else None
        if self._last is None or known == self._stamps[self._last] or self._note({self._last: known}, now) > LOOK_S:
            refs = recorded_ranks(self._path)
            if not refs:
                return None
            folders = (rank_folder(self._path, ref.role, ref.rank) for ref in refs)
            files = (self._path / EVENTS_FILE, self._path / METRICS_FILE)
            self._note({each: _stamp(each) for each in (*files, *folders)}, now)
        self._looked = now
        return now - self._written

    def _note(self, found: dict[Path, Stamp | None], now: float) -> float:
        """Note the stamps that have changed; return the seconds since the last write."""
        stamps = {path: stamp for path, stamp in found.items() if stamp is not None}
        changed = {path: stamp for path, stamp in stamps.items() if stamp != self._stamps.get(path)}
        if changed:
            self._last = max(changed, key=lambda path: changed[path][1])
            ago = max(0.0, self._wall() - changed[self._last][1] / 1e9)
            self._written = max(self._written, self._looked, now - ago)
            self._stamps |= changed
        return now - self._written


def _stamp(path: Path) -> Stamp | None:
    """Return what changes with each write to a file, or to the newest part of a rank's record; None without one."""
    with suppress(OSError):
        if path.name.endswith(".jsonl"):
            newest = path
        elif parts := part_files(path):
            newest = parts[-1]
        else:
            return None
        found = os.stat(newest)
        return newest.name, found.st_mtime_ns, found.st_size
    return None
