"""The status pages of a running job's ranks, read from outside: where each rank is, without asking anybody."""

from __future__ import annotations

import re
from pathlib import Path

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.rank.status_page import Position, StatusPage
from rolemesh_processes.guard import shm_folder

__all__ = ["StatusPages"]


_NAME = re.compile(r"status-(\w+)-(\d+)-(\d+)")


class StatusPages:
    """Reads the newest status page of every rank, on all agents of this machine; takes some 0.1 ms."""

    def __init__(self, job_id: str) -> None:
        self._any = shm_folder(job_id, "*")
        self._open: dict[RankRef, tuple[int, StatusPage]] = {}

    def look(self) -> dict[RankRef, Position]:
        """Return the present step of every rank. For a dead rank it is the last one."""
        for folder in self._any.parent.glob(self._any.name):
            for path in folder.glob("status-*"):
                self._take(path)
        return {key: status_page.read() for key, (_, status_page) in self._open.items()}

    def close(self) -> None:
        """Unmap everything."""
        for _, status_page in self._open.values():
            status_page.close()
        self._open.clear()

    def _take(self, path: Path) -> None:
        named = _NAME.fullmatch(path.name)
        if named is None:
            return
        key, generation = (named[1], int(named[2])), int(named[3])
        known = self._open.get(key)
        if known is not None and known[0] >= generation:
            return
        try:
            status_page = StatusPage.open(path)
        except (FileNotFoundError, ValueError):  # Removed meanwhile, or not at its full size yet.
            return
        self._open[key] = (generation, status_page)
        if known is not None:
            known[1].close()
