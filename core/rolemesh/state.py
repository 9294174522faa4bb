"""The journal's store: every transition of a job as a row in a database, on SQLAlchemy Core.

Who decides what is journalled is the master; this module keeps the order without gaps, fences masters of older epochs,
and reads back everything that is kept, or nothing. SQLAlchemy is imported by `Store.open`, not by importing this
module.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from rolemesh.database import BUSY_S, SQLITE_FILE, connect, parse, preallocate
from rolemesh.errors import StateError
from rolemesh.observer import Event

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, MetaData

__all__ = ["SQLITE_FILE", "JournalDamagedError", "JournalFencedError", "StateUnavailableError", "Store", "Stored"]

TRIES = 5
"""How often a reader begins again because the journal has been compacted under it."""


class JournalDamagedError(StateError):
    """The journal is not what was written. Reading it again does not help, so no other master should try."""


class JournalFencedError(StateError):
    """Another epoch has taken the job over: this master must end."""


class StateUnavailableError(StateError):
    """The database is full, locked, away or slow: the same may succeed later."""


class Stored(NamedTuple):
    """All that is kept of a job: how far it is committed, its head, and events.

    `head` stands for the events up to number `head_seq`; "" and 0 while there is none. `events` are all rows, some of
    which the head may cover.
    """

    committed: int
    head_seq: int
    head: str
    events: list[Event]


class _Row(NamedTuple):
    """The job's row: events `first` to `last` are kept, the head covers those up to `head`."""

    epoch: int
    last: int
    first: int = 1
    committed: int = -1
    head: int = 0

    def values(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "last_seq": self.last,
            "first_seq": self.first,
            "committed": self.committed,
            "head_seq": self.head,
            "crc": zlib.crc32(repr(tuple(self)).encode()),
        }


class Store:
    """One job's journal in a database.

    Three tables: ``rolemesh_journals`` has a row per job with its epoch, last number and committed step;
    ``rolemesh_journal_events`` the newest events, primary key (job_id, seq); ``rolemesh_journal_heads`` what stands for
    the older ones. Each row has a CRC-32 of its content. Several jobs may share a database. Every write begins with an
    update of the job's row, which takes its lock: so writers of one job queue up, and one whose epoch is over is
    refused before it has written anything.

    SQLite runs in WAL mode, so that readers never wait for the master nor it for them, and with ``synchronous=FULL``:
    what the master has journalled it then tells agents, which drop retained values and snapshots for it, so the
    journal must not fall behind them in a power cut. A transaction costs one fsync; the master batches
    what happened in one turn into one transaction, a few per second.
    """

    def __init__(self, engine: Engine, job_id: str, place: str) -> None:
        self._engine = engine
        self._job = job_id
        self._place = place
        self._tables = _tables()
        self._kept: Connection | None = None
        self._row: _Row | None = None
        """As this object has written it last."""

    @classmethod
    def open(cls, url: str, run_dir: str | Path, job_id: str) -> Store:
        """Connect to the journal of job `job_id`.

        `url` is any SQLAlchemy URL, or ``sqlite`` for ``state.sqlite`` in `run_dir`; a relative SQLite path is relative
        to `run_dir`. Nothing is created before `claim`. Raises `StateError` if the database cannot be reached.
        """
        parsed = parse(url, Path(run_dir))
        store = cls(connect(parsed), job_id, parsed.render_as_string(hide_password=True))
        if parsed.get_backend_name() != "sqlite" or Path(str(parsed.database)).exists():
            with store._errors(), store._engine.connect():
                pass
        return store

    # ------------------------------------------------------------------------------------------------------- the master

    def claim(self) -> int:
        """Take the job over: returns the next epoch, from 1. Writers of older epochs are refused from now on."""
        from sqlalchemy.exc import IntegrityError

        self._create()
        with self._errors():
            try:
                self._row = self._next_epoch()
            except IntegrityError:  # another claim made the job's row between our update and our insert
                self._row = self._next_epoch()
            if self._is_sqlite and self._kept is None:
                self._kept = self._engine.connect()
                preallocate(self._engine)
        return self._row.epoch

    def append(
        self, epoch: int, entries: Sequence[tuple[float, str, dict[str, Any]]], committed: int | None = None
    ) -> list[Event]:
        """Write (time, kind, data) entries in one transaction; returns them as numbered events.

        `committed`: the step that is committed from now on, where that has changed. Raises `JournalFencedError`, and
        writes nothing, if another epoch has claimed the job since. After a `StateUnavailableError` the same may be
        given again: if it has been written after all (a connection may break between the commit and its confirmation),
        it is not written twice.
        """
        before = self._mine(epoch)
        events = [Event(before.last + 1 + i, epoch, *entry) for i, entry in enumerate(entries)]
        after = before._replace(last=before.last + len(events))
        if committed is not None:
            after = after._replace(committed=committed)
        if after == before:
            return events
        with self._errors(), self._engine.begin() as connection:
            if self._update(connection, before, after) and events:
                connection.execute(self._events.insert(), [_row(self._job, event) for event in events])
        self._row = after
        return events

    def compact(self, epoch: int, seq: int, head: str, keep: int) -> None:
        """Let `head` stand for the events up to number `seq`; of those only the newest are kept, `keep` events in all.

        One transaction. Raises as `append` does, and may be tried again as that.
        """
        before = self._mine(epoch)
        after = before._replace(first=max(before.first, min(before.last - keep, seq) + 1), head=seq)
        with self._errors(), self._engine.begin() as connection:
            if self._update(connection, before, after):
                mine = self._heads.c.job_id == self._job
                connection.execute(self._heads.delete().where(mine))
                values = {"job_id": self._job, "seq": after.head, "data": head}
                connection.execute(self._heads.insert().values(crc=_crc(after.head, head), **values))
                old = self._events.delete().where(self._events.c.job_id == self._job)
                connection.execute(old.where(self._events.c.seq < after.first))
        self._row = after

    def block(self, seconds: float) -> None:
        """Rehearsal: nobody can write to the job's journal for so long, as if the database did not answer."""
        jobs = self._jobs
        with self._errors(), self._engine.begin() as connection:
            connection.execute(jobs.update().where(jobs.c.job_id == self._job).values(epoch=jobs.c.epoch))
            time.sleep(seconds)

    def verify(self, epoch: int) -> None:
        """Raises `JournalFencedError` if another epoch has claimed the job since."""
        with self._errors(), self._engine.connect() as connection:
            row = connection.execute(self._jobs.select().where(self._jobs.c.job_id == self._job)).one_or_none()
        if row is None or row.epoch != epoch:
            raise self._fenced(epoch, row)

    # -------------------------------------------------------------------------------------------------------- reading

    def read(self) -> Stored:
        """All that is kept. Raises as `events` does; a head that is damaged or not there is damage, too."""
        row, events = self._read(0, None)
        head = ""
        if row.head:
            with self._errors(), self._engine.connect() as connection:
                found = connection.execute(self._heads.select().where(self._heads.c.job_id == self._job)).one_or_none()
            if found is None:
                raise self._damaged(f"what stands for events 1 to {row.head} is missing")
            if found.seq != row.head or _crc(found.seq, found.data) != found.crc:
                raise self._damaged(f"what stands for events 1 to {row.head} does not match its checksum")
            head = found.data
        return Stored(row.committed, row.head, head, events)

    def events(self, since: int = 0, limit: int | None = None) -> list[Event]:
        """Events after number `since` that are kept, in order, and no more than `limit`.

        The first may be later than ``since + 1``: older ones are compacted away, and in ``events.jsonl`` only. Raises
        `StateError` if the database has no journal of this job, and `JournalDamagedError` if it has one with a gap, a
        damaged row or epochs out of order: all that was asked for is read, or nothing.
        """
        return self._read(since, limit)[1]

    def close(self) -> None:
        """Close the connections."""
        if self._kept is not None:
            self._kept.close()
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read(self, since: int, limit: int | None) -> tuple[_Row, list[Event]]:
        for _ in range(TRIES):
            row = self._job_row()
            first = max(since + 1, row.first)
            until = row.last if limit is None else min(row.last, first + limit - 1)
            # What is appended from here on may be by a later epoch than the row's that was just read.
            query = self._events.select().where(self._events.c.job_id == self._job, self._events.c.seq >= first)
            with self._errors(), self._engine.connect() as connection:
                rows = connection.execute(query.where(self._events.c.seq <= until).order_by(self._events.c.seq)).all()
            if (not rows or rows[0].seq > first) and self._job_row().first > row.first:
                continue  # compacted in between
            return row, self._checked(rows, first, until, row)
        raise StateUnavailableError("the journal changes faster than it is read", where=self._where, remedy="try again")

    def _checked(self, rows: Sequence[Any], first: int, until: int, job: _Row) -> list[Event]:
        events = [self._event(row, first + i) for i, row in enumerate(rows)]
        epochs = [event.epoch for event in events] + [job.epoch]
        for event, after in zip(events, epochs[1:], strict=True):
            if event.epoch > after:
                raise self._damaged(f"event {event.seq} is of epoch {event.epoch}, but epoch {after} comes after it")
        if first + len(events) <= until:
            raise self._damaged(f"events {first + len(events)} to {until} are missing")
        return events

    def _job_row(self) -> _Row:
        import sqlalchemy

        if self._is_sqlite and not Path(str(self._engine.url.database)).exists():
            raise self._missing()
        with self._errors(), self._engine.connect() as connection:
            found = None
            if (tables := sqlalchemy.inspect(connection)).has_table(self._jobs.name):
                found = connection.execute(self._jobs.select().where(self._jobs.c.job_id == self._job)).one_or_none()
            if found is None:
                raise self._old_format() if tables.has_table("rolemesh_jobs") else self._missing()
        return self._sound(found)

    def _sound(self, found: Any) -> _Row:
        row = _Row(found.epoch, found.last_seq, found.first_seq, found.committed, found.head_seq)
        if row.values()["crc"] != found.crc:
            raise self._damaged("the job's own row does not match its checksum")
        return row

    # -------------------------------------------------------------------------------------------------------- writing

    def _update(self, connection: Connection, before: _Row, after: _Row) -> bool:
        """Change the job's row; False if that has been done already. Raises if the row is another epoch's."""
        mine = self._jobs.c.job_id == self._job
        change = self._jobs.update().where(mine, self._jobs.c.epoch == before.epoch)
        if connection.execute(change.where(self._jobs.c.last_seq == before.last).values(**after.values())).rowcount:
            return True
        row = connection.execute(self._jobs.select().where(mine)).one_or_none()
        if row is None or row.epoch != before.epoch or self._sound(row) != after:
            raise self._fenced(before.epoch, row)
        return False

    def _mine(self, epoch: int) -> _Row:
        """The job's row as the master of `epoch` has left it."""
        if self._row is None or self._row.epoch != epoch:
            with self._errors(), self._engine.connect() as connection:
                row = connection.execute(self._jobs.select().where(self._jobs.c.job_id == self._job)).one_or_none()
            if row is None or row.epoch != epoch:
                raise self._fenced(epoch, row)
            self._row = self._sound(row)
        return self._row

    def _next_epoch(self) -> _Row:
        mine = self._jobs.c.job_id == self._job
        with self._engine.begin() as connection:
            if not connection.execute(self._jobs.update().where(mine).values(epoch=self._jobs.c.epoch + 1)).rowcount:
                row = _Row(1, 0)
                connection.execute(self._jobs.insert().values(job_id=self._job, **row.values()))
                return row
            found = connection.execute(self._jobs.select().where(mine)).one()
            kept = found.last_seq, found.first_seq, found.committed, found.head_seq
            if _Row(found.epoch - 1, *kept).values()["crc"] != found.crc:
                raise self._damaged("the job's own row does not match its checksum")
            row = _Row(found.epoch, *kept)
            connection.execute(self._jobs.update().where(mine).values(**row.values()))
        return row

    def _create(self) -> None:
        from sqlalchemy.exc import SQLAlchemyError
        from sqlalchemy.schema import CreateTable

        with self._errors():
            for table in self._tables.sorted_tables:
                statement = CreateTable(table, if_not_exists=True)
                try:
                    with self._engine.begin() as connection:
                        connection.execute(statement)
                except SQLAlchemyError:  # PostgreSQL: two at the same moment, and one fails in spite of IF NOT EXISTS
                    with self._engine.begin() as connection:
                        connection.execute(statement)

    @property
    def _jobs(self) -> Any:
        return self._tables.tables["rolemesh_journals"]

    @property
    def _events(self) -> Any:
        return self._tables.tables["rolemesh_journal_events"]

    @property
    def _heads(self) -> Any:
        return self._tables.tables["rolemesh_journal_heads"]

    @property
    def _is_sqlite(self) -> bool:
        return self._engine.url.get_backend_name() == "sqlite"

    # --------------------------------------------------------------------------------------------------------- errors

    def _event(self, row: Any, expected: int) -> Event:
        if row.seq != expected:
            raise self._damaged(f"event {expected} is missing, the next one is {row.seq}")
        if _checksum(row.seq, row.epoch, row.time, row.kind, row.data) != row.crc:
            raise self._damaged(f"event {row.seq} does not match its checksum")
        return Event(row.seq, row.epoch, row.time, row.kind, msgspec.json.decode(row.data))

    def _fenced(self, epoch: int, row: Any) -> StateError:
        if row is None:
            return JournalFencedError(
                f"epoch {epoch} has not been claimed", where=self._where, remedy="call claim() first"
            )
        return JournalFencedError(
            f"this master has epoch {epoch}, but epoch {row.epoch} has taken the job over",
            where=self._where,
            remedy="this master must end; the other one runs the job",
        )

    def _missing(self) -> StateError:
        return StateError(
            "there is no journal of this job",
            where=self._where,
            remedy="the job never started, or `state` in its job.yaml names another database",
        )

    def _old_format(self) -> StateError:
        return StateError(
            "there is no journal of this job in the present format, but there are journals of an older rolemesh",
            where=self._where,
            remedy="read it with the rolemesh that wrote it; events.jsonl in the run's folder has the events, and "
            "--resume goes on from the run's snapshots",
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
        return f"{self._place}, job {self._job}"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn what the database or its driver raises into a `StateError` that says where and what to do."""
        from sqlalchemy.exc import DatabaseError, DBAPIError, SQLAlchemyError

        try:
            yield
        except SQLAlchemyError as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            text = str(cause).strip()
            if type(error) is DatabaseError or any(sign in text for sign in ("malformed", "not a database", "no such")):
                raise self._damaged(text) from error
            if "locked" in text or "lock timeout" in text:
                remedy = f"another process has held the database's lock for {BUSY_S} s; find it and end it"
            elif "full" in text or "No space" in text:
                remedy = "make room where the database is"
            else:
                remedy = "check that the database is up, that this user may write it, and `state` in the job file"
            raise StateUnavailableError(
                f"the journal cannot be reached: {text}", where=self._where, remedy=remedy
            ) from error


def _tables() -> MetaData:
    from sqlalchemy import BigInteger, Column, Double, MetaData, String, Table, Text
    from sqlalchemy.dialects.mysql import LONGTEXT

    def job() -> Column[str]:
        return Column("job_id", String(128), primary_key=True)

    def number(name: str) -> Column[int]:
        return Column(name, BigInteger, nullable=False)

    tables = MetaData()
    # JSON as text: stored bytes are what the checksum is of.
    long_text = Text().with_variant(LONGTEXT(), "mysql", "mariadb")
    counters = ("epoch", "last_seq", "first_seq", "committed", "head_seq", "crc")
    Table("rolemesh_journals", tables, job(), *map(number, counters))
    head = Column("data", long_text, nullable=False)
    Table("rolemesh_journal_heads", tables, job(), number("seq"), head, number("crc"))
    Table(
        "rolemesh_journal_events",
        tables,
        job(),
        Column("seq", BigInteger, primary_key=True, autoincrement=False),
        number("epoch"),
        Column("time", Double, nullable=False),
        Column("kind", String(64), nullable=False),
        Column("data", Text, nullable=False),
        number("crc"),
    )
    return tables


def _checksum(seq: int, epoch: int, time: float, kind: str, data: str) -> int:
    return zlib.crc32(repr((seq, epoch, time, kind, data)).encode())


def _crc(seq: int, data: str) -> int:
    return zlib.crc32(repr((seq, data)).encode())


def _row(job_id: str, event: Event) -> dict[str, Any]:
    data = msgspec.json.encode(event.data).decode()
    crc = _checksum(event.seq, event.epoch, float(event.time), event.kind, data)
    return {
        "job_id": job_id,
        "seq": event.seq,
        "epoch": event.epoch,
        "time": float(event.time),
        "kind": event.kind,
        "data": data,
        "crc": crc,
    }
