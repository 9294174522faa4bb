"""JobContext: every transition of a job is an event in the journal before its effects leave the master."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any

from rolemesh.observer import Event
from rolemesh.state import Store

__all__ = ["JobContext"]

RECENT = 4096


class JobContext:
    """The journal of one job under one epoch, and the recent events in memory for those who watch."""

    def __init__(self, url: str, run_dir: Path, job_id: str) -> None:
        """Take the job over; `history` is what earlier masters have journalled. Raises `StateError` if damaged."""
        self._store = Store.open(url, run_dir, job_id)
        self.epoch = self._store.claim()
        self.history: list[Event] = self._store.events() if self.epoch > 1 else []
        self.recent: deque[Event] = deque(self.history[-RECENT:], maxlen=RECENT)

    def append(self, entries: list[tuple[str, dict[str, Any]]]) -> list[Event]:
        """Journal transitions in one transaction; raises `StateError` if a newer master has taken over."""
        if not entries:
            return []
        now = time.time()
        events = self._store.append(self.epoch, [(now, kind, data) for kind, data in entries])
        self.recent.extend(events)
        return events

    def verify(self) -> None:
        """Raises `StateError` if a newer master has taken over."""
        self._store.verify(self.epoch)

    def since(self, seq: int) -> tuple[Event, ...]:
        """Events after number `seq`, as far back as memory reaches or else from the store."""
        if self.recent and self.recent[0].seq > seq + 1:
            return tuple(self._store.events(seq))
        return tuple(event for event in self.recent if event.seq > seq)

    def all(self) -> list[Event]:
        """The whole journal."""
        return self._store.events()

    def close(self) -> None:
        """Close the store."""
        self._store.close()
