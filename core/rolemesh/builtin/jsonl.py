"""The `jsonl` observer of earlier job files. Its work is the kernel's: see `rolemesh.master.publication`."""

from __future__ import annotations

from rolemesh.hookspecs import hookimpl
from rolemesh.observer import Observer, RunInfo

__all__ = ["JsonlObserver"]


class JsonlObserver(Observer):
    """Does nothing: every job writes ``events.jsonl`` and ``metrics.jsonl``. Job files that name it stay valid."""

    @hookimpl
    def job_started(self, run: RunInfo) -> None:
        """Nothing to do."""
