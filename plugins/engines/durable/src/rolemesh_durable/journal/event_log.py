"""The events of one job in a store: every transition of the job, numbered, checksummed and fenced by epochs.

The master decides what is journalled. This module keeps the order without gaps, refuses masters of older epochs, and
reads back everything that is kept, or nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from rolemesh.api.observer import Event
from rolemesh.errors import PluginError
from rolemesh.plugins.discovery import PluginRecord, discover, find
from rolemesh.plugins.drivers import load
from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh_durable.stores import JournalDamagedError, Numbered, StateError, StateUnavailableError, Store, scheme

__all__ = ["EventLog", "JournalFencedError", "Stored", "store_named"]

T = TypeVar("T")
TRIES = 5
"""Maximum number of times that a reader begins again because the journal was compacted meanwhile."""


class JournalFencedError(StateError):
    """Another epoch has taken the job over: this master must end."""


class Stored(NamedTuple):
    """The journal of a job: the committed step, the head, and events.

    `head` stands for the events up to number `head_seq`; "" and 0 while there is none. `events` are all that exist; the
    head may cover some of them.
    """

    committed: int
    head_seq: int
    head: str
    events: list[Event]


_URLS = "write a URL: sqlite:///journal.db for a file in the run's folder, or postgresql+psycopg://user@host/database"


class _Root(NamedTuple):
    """The job's root: events `first` to `last` exist, and the head covers those up to `head`."""

    epoch: int
    last: int
    first: int = 1
    committed: int = -1
    head: int = 0


def store_named(url: str, where: str = "state") -> PluginRecord:
    """Return the plugin for the value of `state` in a job file. Raises `PluginError` if it is not installed."""
    try:
        return find("stores", scheme(url), discover(("stores",)), where)
    except PluginError as error:
        if "://" not in url and not url.isalnum():  # the path of a file, or of a class
            error.remedy = f"{_URLS}, not {url!r}"
        raise


class EventLog(AbstractContextManager["EventLog"]):
    """One job's events.

    Its root in the store decides who may write: it has the epoch, the number of the last event and the committed step,
    and each write replaces the root that the writer knows. So writers of one job are serialized, and a writer of an old
    epoch is refused before it has written anything. Each text has a CRC-32 of the rest before it.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._root: _Root | None = None
        """The root as this object last wrote it."""

    @classmethod
    def open(cls, url: str, run_dir: str | Path, job_id: str, store: type[Store] | None = None) -> EventLog:
        """Connect to the journal of job `job_id`, in the `store` that `url` names.

        Nothing is created before `claim`. Raises `StateError` if the store cannot be reached, and `PluginError` if it
        is not installed.
        """
        opened = (store or load(store_named(url)))(url, Path(run_dir), job_id)
        opened.connect()
        return cls(opened)

    # ------------------------------------------------------------------------------------------------------- the master

    def claim(self) -> int:
        """Take the job over and return the next epoch, from 1. Writers of older epochs are refused from now on."""
        self.store.prepare()
        while True:
            text = self.store.root()
            before = None if text is None else self._sound(text)
            after = _Root(1, 0) if before is None else before._replace(epoch=before.epoch + 1)
            if self.store.write(text, _sealed(after)):
                self._root = after
                return after.epoch

    def append(
        self, epoch: int, entries: Sequence[tuple[float, str, dict[str, Any]]], committed: int | None = None
    ) -> list[Event]:
        """Write (time, kind, data) entries at once; return them as numbered events.

        `committed`: the newly committed step, if it has changed. Raises `JournalFencedError`, and writes nothing, if
        another epoch has claimed the job since. After a `StateUnavailableError` the same entries may be given again. If
        they were written after all (a connection may break between the commit and its confirmation), they are not
        written twice.
        """
        before = self._mine(epoch)
        events = [Event(before.last + 1 + i, epoch, *entry) for i, entry in enumerate(entries)]
        after = before._replace(last=before.last + len(events))
        if committed is not None:
            after = after._replace(committed=committed)
        if after != before:
            self._write(before, after, records=[_record(event) for event in events])
        return events

    def compact(self, epoch: int, seq: int, head: str, keep: int) -> None:
        """Let `head` stand for the events up to number `seq`; of those only the newest are kept, `keep` events in all.

        Raises as `append` does, and may be repeated in the same way.
        """
        before = self._mine(epoch)
        after = before._replace(first=max(before.first, min(before.last - keep, seq) + 1), head=seq)
        self._write(before, after, first=after.first, head=_sealed((seq, head)))

    def verify(self, epoch: int) -> None:
        """Raise `JournalFencedError` if another epoch has claimed the job since."""
        text = self.store.root()
        if text is None or self._sound(text).epoch != epoch:
            raise self._fenced(epoch, text)

    # -------------------------------------------------------------------------------------------------------- reading

    def read(self) -> Stored:
        """Return everything that is kept. Raises as `events` does; a damaged or missing head is damage, too."""
        root, events = self._read(0, None)
        head = ""
        if root.head:
            if (text := self.store.head()) is None:
                raise self._damaged(f"what stands for events 1 to {root.head} is missing")
            found = _unsealed(text, tuple[int, str])
            if found is None or found[0] != root.head:
                raise self._damaged(f"what stands for events 1 to {root.head} does not match its checksum")
            head = found[1]
        return Stored(root.committed, root.head, head, events)

    def events(self, since: int = 0, limit: int | None = None) -> list[Event]:
        """Return the existing events after number `since` in order, at most `limit`.

        The first may be later than ``since + 1``: older ones are compacted away, and only in ``events.jsonl``. Raises
        `StateError` if the store has no journal of this job, and `JournalDamagedError` if it has a gap, a damaged
        record or epochs out of order. The result is complete, or there is none.
        """
        return self._read(since, limit)[1]

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read(self, since: int, limit: int | None) -> tuple[_Root, list[Event]]:
        for _ in range(TRIES):
            root = self._known_root()
            first = max(since + 1, root.first)
            until = root.last if limit is None else min(root.last, first + limit - 1)
            # What is appended from here on may be by a later epoch than the root's that was just read.
            found = self.store.records(first, until)
            if (not found or found[0][0] > first) and self._known_root().first > root.first:
                continue  # compacted in between
            return root, self._checked(found, first, until, root)
        raise StateUnavailableError("the journal changes faster than it is read", where=self._where, remedy="try again")

    def _checked(self, found: Sequence[Numbered], first: int, until: int, root: _Root) -> list[Event]:
        events = [self._event(record, first + i) for i, record in enumerate(found)]
        epochs = [event.epoch for event in events] + [root.epoch]
        for event, after in zip(events, epochs[1:], strict=True):
            if event.epoch > after:
                raise self._damaged(f"event {event.seq} is of epoch {event.epoch}, but epoch {after} comes after it")
        if first + len(events) <= until:
            raise self._damaged(f"events {first + len(events)} to {until} are missing")
        return events

    def _event(self, record: Numbered, expected: int) -> Event:
        seq, text = record
        if seq != expected:
            raise self._damaged(f"event {expected} is missing, the next one is {seq}")
        found = _unsealed(text, tuple[int, int, float, str, dict[str, Any]])
        if found is None or found[0] != seq:
            raise self._damaged(f"event {seq} does not match its checksum")
        return Event(*found)

    def _known_root(self) -> _Root:
        if (text := self.store.root()) is None:
            raise StateError(
                "there is no journal of this job",
                where=self._where,
                remedy="the job never started, or `state` in its job.yaml names another database",
            )
        return self._sound(text)

    def _sound(self, text: str) -> _Root:
        if (found := _unsealed(text, _Root)) is None:
            raise self._damaged("the job's own row does not match its checksum")
        return found

    # -------------------------------------------------------------------------------------------------------- writing

    def _write(self, before: _Root, after: _Root, **more: Any) -> None:
        """Replace the root, and write `more` with it, unless exactly that has been done already."""
        if not self.store.write(_sealed(before), _sealed(after), **more):
            text = self.store.root()
            if text != _sealed(after):
                raise self._fenced(before.epoch, text)
        self._root = after

    def _mine(self, epoch: int) -> _Root:
        """Return the root as the master of `epoch` left it."""
        if self._root is None or self._root.epoch != epoch:
            text = self.store.root()
            root = None if text is None else self._sound(text)
            if root is None or root.epoch != epoch:
                raise self._fenced(epoch, text)
            self._root = root
        return self._root

    # --------------------------------------------------------------------------------------------------------- errors

    def _fenced(self, epoch: int, text: str | None) -> StateError:
        if text is None:
            return JournalFencedError(
                f"epoch {epoch} has not been claimed", where=self._where, remedy="call claim() first"
            )
        return JournalFencedError(
            f"this master has epoch {epoch}, but epoch {self._sound(text).epoch} has taken the job over",
            where=self._where,
            remedy="this master must end; the other one runs the job",
        )

    def _damaged(self, what: str) -> JournalDamagedError:
        return JournalDamagedError(
            f"the journal is damaged: {what}",
            where=self._where,
            remedy="restore the database from a backup; events.jsonl in the run's folder is a copy to read, "
            "nothing recovers from it",
        )

    @property
    def _where(self) -> str:
        return f"{self.store.place}, job {self.store.job_id}"


def _record(event: Event) -> Numbered:
    return event.seq, _sealed((event.seq, event.epoch, float(event.time), event.kind, event.data))


def _sealed(values: tuple[Any, ...]) -> str:
    """Return JSON after its checksum."""
    text = msgspec.json.encode(values)
    return f"{zlib.crc32(text):08x} {text.decode()}"


def _unsealed(text: str, kind: type[T]) -> T | None:
    """Return the sealed values; None if the text was changed."""
    checksum, _, data = text.partition(" ")
    with suppress(*UNDECODABLE):
        if f"{zlib.crc32(data.encode(errors='surrogatepass')):08x}" == checksum:
            return msgspec.json.decode(data, type=kind)
    return None
