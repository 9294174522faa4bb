"""Journal: every transition of a job is an event in the store before its effects leave the master."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rolemesh.api.observer import Event
from rolemesh.runs.run import EVENTS_FILE, METRICS_FILE
from rolemesh_durable.journal.event_log import EventLog, Stored
from rolemesh_durable.journal.line_file import last_line
from rolemesh_durable.master.history import History
from rolemesh_durable.master.writer import Writes
from rolemesh_durable.protocol.master.state import JobState
from rolemesh_durable.runs import ControlFile, Run
from rolemesh_durable.stores import JournalDamagedError

__all__ = ["Claimed", "Journal", "refuse_damaged"]

RECENT = 4096
"""Number of events in memory, for watching clients."""
KEPT = 1000
"""Number of events that stay in the store when it is compacted, which happens at twice as many."""
WHAT = "the journal"


class Claimed(NamedTuple):
    """A new master's findings: its epoch, the stored journal, and the published events and lines.

    `told` is the last event in ``events.jsonl`` (0: none), `published` the last step in ``metrics.jsonl`` (-1: none).
    """

    epoch: int
    stored: Stored
    told: int
    published: int


class Journal:
    """The journal of one job, and the recent events in memory for watching clients.

    Only `writer` uses the log that `opened` returns, so the loop never waits for it. `fresh` makes the state with which
    the job's first master began. `history` follows the journal with it, and replaces it when it is compacted. `written`
    returns the last event in ``events.jsonl``.
    """

    history: History

    def __init__(
        self,
        opened: Callable[[], EventLog],
        run_dir: Path,
        writer: Writes,
        fresh: Callable[[], JobState],
        written: Callable[[], int],
    ) -> None:
        self._run_dir = run_dir
        self._open = opened
        self._writer = writer
        self._fresh = fresh
        self._written = written
        self._store: EventLog | None = None
        self._epoch = 0
        self._head_seq = 0
        self.recent: deque[Event] = deque(maxlen=RECENT)

    def claim(self, then: Callable[[Claimed], None], *, patient: bool) -> None:
        """Take the job over, with the journal of all earlier masters. `collect` raises if it is damaged.

        For a job that has just been started (not `patient`), an unreachable store is an error.
        """

        run_dir = self._run_dir

        def take_over() -> Claimed:
            self._store = self._store or self._open()
            epoch, stored = self._store.claim(), self._store.read()
            told, published = last_line(run_dir / EVENTS_FILE), last_line(run_dir / METRICS_FILE)
            return Claimed(epoch, stored, int(told.get("seq", 0)), int(published.get("step", -1)))

        def claimed(found: Claimed) -> None:
            self._epoch, self._head_seq = found.epoch, found.stored.head_seq
            self.history = History(self._fresh, found.stored)
            self.recent.extend(found.stored.events[-RECENT:])
            then(found)

        self._writer.submit(WHAT, take_over, claimed, patient=patient)

    def append(
        self,
        entries: list[tuple[str, dict[str, Any]]],
        then: Callable[[list[Event]], None],
        committed: int | None = None,
    ) -> None:
        """Journal transitions, and the committed step if it has changed, in one transaction.

        `then` gets the transitions as events. If another master has taken over, `collect` raises.
        """
        now = time.time()
        store = self._claimed

        def appended(events: list[Event]) -> None:
            self.recent.extend(events)
            self.history.apply(events, committed)
            self._compact()
            then(events)

        stamped = [(now, kind, data) for kind, data in entries]
        self._writer.submit(WHAT, lambda: store.append(self._epoch, stamped, committed), appended)

    def _compact(self) -> None:
        """Let the history replace old events, so that no master ever reads more than some thousand events."""
        seq = self.history.seq
        if seq - self._head_seq < KEPT:
            return
        self._head_seq = seq
        head, store = self.history.head(), self._claimed
        # A new master must be able to write the events that events.jsonl lacks.
        keep = KEPT + max(0, seq - self._written())
        self._writer.submit(WHAT, lambda: store.compact(self._epoch, seq, head, keep))

    def verify(self, then: Callable[[], None]) -> None:
        """Call `then` if this is still the newest master; if not, `collect` raises `JournalFencedError`."""
        store = self._claimed
        self._writer.submit(WHAT, lambda: store.verify(self._epoch), lambda _: then())

    def close(self) -> None:
        """Close the store. Call it after the writer has ended."""
        if self._store is not None:
            self._store.close()

    @property
    def _claimed(self) -> EventLog:
        assert self._store is not None, "claim() comes first"
        return self._store


def refuse_damaged(run_dir: Path, newest: int, found: Claimed, earlier: ControlFile | None, job_id: str) -> None:
    """Raise `JournalDamagedError` if earlier masters (`earlier`: the last) have journalled more than is there."""
    if found.told > newest:
        what = f"the journal ends with event {newest}, but event {found.told} was already published"
    elif found.epoch == 1 and earlier is not None:
        what = f"the master with pid {earlier.pid} had a journal, and it is gone"
    elif (other := Run(run_dir).control()) is not None and other.job_id != job_id:
        what = f"another job ({other.job_id}, master {other.pid}) has taken the folder"
    else:
        return
    remedy = "restore the database from a backup, or start the job again with --resume"
    raise JournalDamagedError(what, where=str(run_dir / EVENTS_FILE), remedy=remedy)
