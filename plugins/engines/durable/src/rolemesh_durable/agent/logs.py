"""The log files of a node's ranks, and the last lines that a rank printed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from rolemesh_processes.output import ERRORS

__all__ = ["Logs"]

TAIL_BYTES = 4096
TAIL_LINES = 20


class Logs:
    """A file per rank, to which all of its generations append. A rank may have a second one for stderr."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before: dict[Path, int] = {}

    def begin(self, role: str, rank: int) -> str:
        """Begin a generation of a rank. Return the path of its log."""
        log, errors = self._paths(role, rank)
        for path in (log, errors):
            self._before[path] = 0
            with suppress(OSError):
                self._before[path] = path.stat().st_size
        return str(log)

    def tail(self, role: str, rank: int) -> str:
        """Return the last lines that the latest generation of a rank printed; "" if there are none or they cannot be
        read."""
        text = ""
        for path in self._paths(role, rank):
            with suppress(OSError), open(path, "rb") as log:
                log.seek(max(self._before.get(path, 0), log.seek(0, 2) - TAIL_BYTES))
                text += log.read(TAIL_BYTES).decode(errors="replace") + "\n"
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        return "\n".join(lines[-TAIL_LINES:])

    def _paths(self, role: str, rank: int) -> tuple[Path, Path]:
        return self._folder / f"{role}-{rank}.log", self._folder / f"{role}-{rank}{ERRORS}"
