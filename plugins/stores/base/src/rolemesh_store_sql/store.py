"""A job's journal in the tables of a database server."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Engine, MetaData, String, Table, Text, inspect
from sqlalchemy.dialects.mysql import LONGTEXT
from sqlalchemy.exc import DatabaseError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.schema import CreateTable

from rolemesh_durable.stores import JournalDamagedError, Numbered, StateUnavailableError, Store
from rolemesh_store_sql.database import BUSY_S, connect, parse

__all__ = ["SqlStore"]


class SqlStore(Store):
    """The stores ``postgresql``, ``mysql`` and ``mariadb``."""

    def __init__(self, url: str, run_dir: Path, job_id: str) -> None:
        super().__init__(url, run_dir, job_id)
        self._url = parse(url)
        self._opened: Engine | None = None
        tables = MetaData()
        # Bytes as they were written: what is compared and checked is the text itself.
        long_text = Text().with_variant(LONGTEXT(collation="utf8mb4_bin"), "mysql", "mariadb")
        self._roots = Table("rolemesh_roots", tables, _job(), Column("data", long_text, nullable=False))
        self._heads = Table("rolemesh_heads", tables, _job(), Column("data", long_text, nullable=False))
        self._records = Table(
            "rolemesh_records",
            tables,
            _job(),
            Column("seq", BigInteger, primary_key=True, autoincrement=False),
            Column("data", long_text, nullable=False),
        )

    @property
    def place(self) -> str:
        return self._url.render_as_string(hide_password=True)

    def connect(self) -> None:
        with self._connection():
            pass

    def prepare(self) -> None:
        for table in (self._roots, self._heads, self._records):
            statement = CreateTable(table, if_not_exists=True)
            with self._errors():
                try:
                    with self._engine.begin() as connection:
                        connection.execute(statement)
                except SQLAlchemyError:  # PostgreSQL: two at the same moment, and one fails in spite of IF NOT EXISTS
                    with self._engine.begin() as connection:
                        connection.execute(statement)

    def root(self) -> str | None:
        with self._connection() as connection:
            if not inspect(connection).has_table(self._roots.name):
                return None
            return self._one(connection, self._roots)

    def head(self) -> str | None:
        with self._connection() as connection:
            return self._one(connection, self._heads)

    def records(self, first: int, last: int) -> list[Numbered]:
        table = self._records.c
        query = self._records.select().where(table.job_id == self.job_id, table.seq.between(first, last))
        with self._connection() as connection:
            return [(int(row.seq), str(row.data)) for row in connection.execute(query.order_by(table.seq))]

    def write(
        self,
        before: str | None,
        after: str,
        *,
        records: Sequence[Numbered] = (),
        first: int | None = None,
        head: str | None = None,
    ) -> bool:
        try:
            with self._errors(), self._engine.begin() as connection:
                if not self._replace(connection, before, after):
                    return False
                if records:
                    rows = [{"job_id": self.job_id, "seq": seq, "data": data} for seq, data in records]
                    connection.execute(self._records.insert(), rows)
                if first is not None:
                    mine = self._records.c.job_id == self.job_id
                    connection.execute(self._records.delete().where(mine, self._records.c.seq < first))
                if head is not None:
                    connection.execute(self._heads.delete().where(self._heads.c.job_id == self.job_id))
                    connection.execute(self._heads.insert().values(job_id=self.job_id, data=head))
        except _TakenError:
            return False
        return True

    def block(self, seconds: float) -> None:
        with self._errors(), self._engine.begin() as connection:
            mine = self._roots.c.job_id == self.job_id
            connection.execute(self._roots.update().where(mine).values(data=self._roots.c.data))
            time.sleep(seconds)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.dispose()

    def _replace(self, connection: Connection, before: str | None, after: str) -> bool:
        if before is None:
            try:
                connection.execute(self._roots.insert().values(job_id=self.job_id, data=after))
            except IntegrityError as error:
                raise _TakenError from error
            return True
        mine = self._roots.c.job_id == self.job_id
        change = self._roots.update().where(mine, self._roots.c.data == before).values(data=after)
        return bool(connection.execute(change).rowcount)

    def _one(self, connection: Connection, table: Table) -> str | None:
        found = connection.execute(table.select().where(table.c.job_id == self.job_id)).one_or_none()
        return None if found is None else str(found.data)

    @property
    def _engine(self) -> Engine:
        if self._opened is None:
            self._opened = connect(self._url)
        return self._opened

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        with self._errors(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert errors of the database or its driver into a `StateError` with place and remedy."""
        try:
            yield
        except SQLAlchemyError as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            text = str(cause).strip()
            if type(error) is DatabaseError:
                raise JournalDamagedError(
                    f"the journal is damaged: {text}",
                    where=self.place,
                    remedy="restore the database from a backup; events.jsonl in the run's folder is a copy to read, "
                    "nothing recovers from it",
                ) from error
            if "lock timeout" in text or "Lock wait timeout" in text:
                remedy = f"another process has held the database's lock for {BUSY_S} s; find it and end it"
            elif "full" in text or "No space" in text:
                remedy = "make room where the database is"
            else:
                remedy = "check that the database is up, that this user may write it, and `state` in the job file"
            raise StateUnavailableError(
                f"the journal cannot be reached: {text}", where=self.place, remedy=remedy
            ) from error


class _TakenError(Exception):
    """Another process has created the job's root first."""


def _job() -> Column[Any]:
    return Column("job_id", String(128), primary_key=True)
