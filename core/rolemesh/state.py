"""The journal's store: every transition of a job as a row in a database, on SQLAlchemy Core.

Who decides what is journalled is the master; this module keeps the order without gaps, fences masters of older epochs,
and reads back everything or nothing. SQLAlchemy is imported by `Store.open`, not by importing this module.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rolemesh.errors import StateError
from rolemesh.observer import Event

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine, MetaData

__all__ = ["SQLITE_FILE", "JournalDamagedError", "Store"]

SQLITE_FILE = "state.sqlite"
BUSY_S = 10
"""How long to wait for another writer's lock or for the server to accept a connection, in seconds."""


class JournalDamagedError(StateError):
    """The journal is not what was written. Reading it again does not help, so no other master should try."""


class Store:
    """One job's journal in a database.

    Two tables: ``rolemesh_jobs`` has a row per job with its current epoch and last sequence number,
    ``rolemesh_events`` the events, primary key (job_id, seq), each with a CRC-32 of its content. Several jobs may
    share a database. Every write begins with an update of the job's row, which takes its lock: so writers of one job
    queue up, and one whose epoch is over is refused before it has written anything.

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

    @classmethod
    def open(cls, url: str, run_dir: str | Path, job_id: str) -> Store:
        """Connect to the journal of job `job_id`.

        `url` is any SQLAlchemy URL, or ``sqlite`` for ``state.sqlite`` in `run_dir`; a relative SQLite path is relative
        to `run_dir`. Nothing is created before `claim`. Raises `StateError` if the database cannot be reached.
        """
        from sqlalchemy import create_engine, event

        parsed = _parse(url, Path(run_dir))
        place = parsed.render_as_string(hide_password=True)
        sqlite = parsed.get_backend_name() == "sqlite"
        arguments: dict[str, Any] = {}
        if sqlite:
            arguments["timeout"] = BUSY_S
        elif parsed.get_backend_name() in ("postgresql", "mysql", "mariadb"):
            arguments["connect_timeout"] = BUSY_S
        try:
            engine = create_engine(parsed, connect_args=arguments, pool_pre_ping=not sqlite, hide_parameters=True)
        except ImportError as error:
            raise StateError(
                f"the driver of this database is not installed: {error}",
                where=place,
                remedy=f"pip install {error.name or parsed.get_driver_name()}, or use state: sqlite",
            ) from error
        if sqlite:
            event.listen(engine, "connect", _set_pragmas)
        elif parsed.get_backend_name() == "postgresql":
            event.listen(engine, "connect", _set_timeouts)
        store = cls(engine, job_id, place)
        if not sqlite or Path(str(parsed.database)).exists():
            with store._errors(), engine.connect():
                pass
        return store

    def claim(self) -> int:
        """Take the job over: returns the next epoch, from 1. Writers of older epochs are refused from now on."""
        from sqlalchemy.exc import IntegrityError

        self._create()
        with self._errors():
            try:
                return self._next_epoch()
            except IntegrityError:  # another claim made the job's row between our update and our insert
                return self._next_epoch()

    def append(self, epoch: int, entries: Sequence[tuple[float, str, dict[str, Any]]]) -> list[Event]:
        """Write (time, kind, data) entries in one transaction; returns them as numbered events.

        Raises `StateError`, and writes nothing, if another epoch has claimed the job since.
        """
        if not entries:
            return []
        jobs, table = self._tables.tables["rolemesh_jobs"], self._tables.tables["rolemesh_events"]
        with self._errors(), self._engine.begin() as connection:
            mine = jobs.c.job_id == self._job
            head = jobs.update().where(mine, jobs.c.epoch == epoch)
            fenced = not connection.execute(head.values(last_seq=jobs.c.last_seq + len(entries))).rowcount
            row = connection.execute(jobs.select().where(mine)).one_or_none()
            if fenced or row is None:
                raise self._fenced(epoch, row)
            first = int(row.last_seq) - len(entries) + 1
            events = [Event(first + i, epoch, *entry) for i, entry in enumerate(entries)]
            connection.execute(table.insert(), [_row(self._job, event) for event in events])
        return events

    def block(self, seconds: float) -> None:
        """Rehearsal: nobody can write to the job's journal for so long, as if the database did not answer."""
        jobs = self._tables.tables["rolemesh_jobs"]
        with self._errors(), self._engine.begin() as connection:
            connection.execute(jobs.update().where(jobs.c.job_id == self._job).values(epoch=jobs.c.epoch))
            time.sleep(seconds)

    def verify(self, epoch: int) -> None:
        """Raises `StateError` if another epoch has claimed the job since."""
        jobs = self._tables.tables["rolemesh_jobs"]
        with self._errors(), self._engine.connect() as connection:
            row = connection.execute(jobs.select().where(jobs.c.job_id == self._job)).one_or_none()
        if row is None or row.epoch != epoch:
            raise self._fenced(epoch, row)

    def events(self, since: int = 0, limit: int | None = None) -> list[Event]:
        """All events after number `since`, in order; with `limit` at most so many of them.

        Raises `StateError` if the database has no journal of this job, and `JournalDamagedError` if it has one with a
        gap, a damaged row or epochs out of order: all of it is read, or nothing.
        """
        import sqlalchemy

        jobs, table = self._tables.tables["rolemesh_jobs"], self._tables.tables["rolemesh_events"]
        if self._engine.url.get_backend_name() == "sqlite" and not Path(str(self._engine.url.database)).exists():
            raise self._missing()
        with self._errors(), self._engine.connect() as connection:
            if not sqlalchemy.inspect(connection).has_table("rolemesh_jobs"):
                raise self._missing()
            head = connection.execute(jobs.select().where(jobs.c.job_id == self._job)).one_or_none()
            if head is None:
                raise self._missing()
            # What is appended from here on may be by a later epoch than the head's that was just read.
            mine = table.select().where(table.c.job_id == self._job)
            query = mine.where(table.c.seq > since, table.c.seq <= head.last_seq).order_by(table.c.seq)
            rows = connection.execute(query.limit(limit)).all()
        events = [self._event(row, since + 1 + i) for i, row in enumerate(rows)]
        epochs = [event.epoch for event in events] + [int(head.epoch)]
        for event, after in zip(events, epochs[1:], strict=True):
            if event.epoch > after:
                raise self._damaged(f"event {event.seq} is of epoch {event.epoch}, but epoch {after} comes after it")
        if since + len(events) < head.last_seq and len(events) != limit:
            raise self._damaged(f"events {since + len(events) + 1} to {head.last_seq} are missing")
        return events

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _next_epoch(self) -> int:
        jobs = self._tables.tables["rolemesh_jobs"]
        mine = jobs.c.job_id == self._job
        with self._engine.begin() as connection:
            if not connection.execute(jobs.update().where(mine).values(epoch=jobs.c.epoch + 1)).rowcount:
                connection.execute(jobs.insert().values(job_id=self._job, epoch=1, last_seq=0))
            return int(connection.execute(jobs.select().where(mine)).one().epoch)

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

    def _event(self, row: Any, expected: int) -> Event:
        if row.seq != expected:
            raise self._damaged(f"event {expected} is missing, the next one is {row.seq}")
        if _checksum(row.seq, row.epoch, row.time, row.kind, row.data) != row.crc:
            raise self._damaged(f"event {row.seq} does not match its checksum")
        return Event(row.seq, row.epoch, row.time, row.kind, msgspec.json.decode(row.data))

    def _fenced(self, epoch: int, row: Any) -> StateError:
        if row is None:
            return StateError(f"epoch {epoch} has not been claimed", where=self._where, remedy="call claim() first")
        return StateError(
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
            if type(error) is DatabaseError or "malformed" in text or "not a database" in text:
                raise self._damaged(text) from error
            if "locked" in text or "lock timeout" in text:
                remedy = f"another process has held the database's lock for {BUSY_S} s; find it and end it"
            else:
                remedy = "check that the database is up, that this user may write it, and `state` in the job file"
            raise StateError(f"the journal cannot be reached: {text}", where=self._where, remedy=remedy) from error


def _parse(url: str, run_dir: Path) -> URL:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    if url == "sqlite":
        url = f"sqlite:///{SQLITE_FILE}"
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except ArgumentError as error:
        raise StateError(
            f"`state` is not a database URL: {error}",
            where="state",
            remedy="write `sqlite`, or a SQLAlchemy URL such as postgresql+psycopg://user:${PASSWORD}@host/database",
        ) from error
    if parsed.get_backend_name() != "sqlite":
        return parsed
    if parsed.database in (None, "", ":memory:"):
        raise StateError(
            "a journal in memory dies with the master it should outlive",
            where=f"state: {url}",
            remedy="write `state: sqlite` for a file in the run's folder",
        )
    return parsed.set(database=str(Path(run_dir, str(parsed.database)).absolute()))


def _tables() -> MetaData:
    from sqlalchemy import BigInteger, Column, Double, MetaData, String, Table, Text

    tables = MetaData()
    Table(
        "rolemesh_jobs",
        tables,
        Column("job_id", String(128), primary_key=True),
        Column("epoch", BigInteger, nullable=False),
        Column("last_seq", BigInteger, nullable=False),
    )
    Table(
        "rolemesh_events",
        tables,
        Column("job_id", String(128), primary_key=True),
        Column("seq", BigInteger, primary_key=True, autoincrement=False),
        Column("epoch", BigInteger, nullable=False),
        Column("time", Double, nullable=False),
        Column("kind", String(64), nullable=False),
        Column("data", Text, nullable=False),  # JSON as text: stored bytes are what the checksum is of
        Column("crc", BigInteger, nullable=False),
    )
    return tables


def _set_pragmas(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _set_timeouts(connection: Any, _record: Any) -> None:
    """So that a master that hangs in the middle of a transaction does not keep its successor from the job's row."""
    cursor = connection.cursor()
    cursor.execute(f"SET lock_timeout = '{BUSY_S}s'")
    cursor.execute(f"SET idle_in_transaction_session_timeout = '{BUSY_S // 2}s'")
    cursor.close()
    connection.commit()


def _checksum(seq: int, epoch: int, time: float, kind: str, data: str) -> int:
    return zlib.crc32(repr((seq, epoch, time, kind, data)).encode())


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
