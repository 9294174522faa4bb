"""The log files of a node's ranks, and the last lines that a rank printed."""

from __future__ import annotations

from pathlib import Path

from rolemesh.api.rank_ref import RankRef

__all__ = ["Logs"]

TAIL_BYTES = 4096
TAIL_LINES = 20


class Logs:
    """A file per rank, to which all of its generations append."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before: dict[RankRef, int] = {}

    def begin(self, role: str, rank: int) -> str:
        """Begin a generation of a rank. Return the path of its log."""
        path = self._path(role, rank)
        try:
            self._before[RankRef(role, rank)] = path.stat().st_size
        except OSError:
            self._before[RankRef(role, rank)] = 0
        return str(path)

    def tail(self, role: str, rank: int) -> str:
        """Return the last lines that the latest generation of a rank printed; "" if there are none or they cannot be
        read."""
        try:
            with open(self._path(role, rank), "rb") as log:
                end = log.seek(0, 2)
                log.seek(max(self._before.get(RankRef(role, rank), 0), end - TAIL_BYTES))
                text = log.read(TAIL_BYTES).decode(errors="replace")
        except OSError:
            return ""
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        return "\n".join(lines[-TAIL_LINES:])

    def _path(self, role: str, rank: int) -> Path:
        return self._folder / f"{role}-{rank}.log"
