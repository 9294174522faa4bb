"""The default store: the SQLite file ``state.sqlite`` in the run's folder, with the driver of the standard library.

It runs in WAL mode, so that readers and the master never wait for each other, and with ``synchronous=FULL``. Agents
drop retained values and snapshots for steps that the master has journalled, so a power cut must not lose journal
entries. A transaction costs one fsync; the master batches the events of one turn into one transaction, a few per
second.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from rolemesh_durable.stores import JournalDamagedError, Numbered, StateError, StateUnavailableError, Store
from rolemesh_runtime.unreadable import BROKEN

__all__ = ["SQLITE_FILE", "SqliteStore"]

SQLITE_FILE = "state.sqlite"
BUSY_S = 2
"""Maximum seconds of a wait for another writer's lock.

The caller tries again. The value is shorter than half of the shortest lease, so that nobody mistakes the wait for a
death.
"""
ROOM_BYTES = 4 << 20
"""Bytes that the file and its log reserve at once. A journal is compacted, so that of a usual job fits."""
CHECKPOINT_PAGES = 256
"""Number of pages after which SQLite moves its log into the file and begins it again."""
TABLES = (
    "CREATE TABLE IF NOT EXISTS rolemesh_roots (job_id TEXT PRIMARY KEY, data TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS rolemesh_heads (job_id TEXT PRIMARY KEY, data TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS rolemesh_records"
    " (job_id TEXT, seq INTEGER, data TEXT NOT NULL, PRIMARY KEY (job_id, seq)) WITHOUT ROWID",
)
CLOSING = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)
"""Errors after which a connection is of no use: the low bytes of their codes."""
OLDER = ("rolemesh_jobs", "rolemesh_journals")
"""Tables in which older versions kept journals."""


class SqliteStore(Store):
    """The store ``sqlite``."""

    def __init__(self, url: str, run_dir: Path, job_id: str) -> None:
        super().__init__(url, run_dir, job_id)
        scheme, _, path = url.partition("?")[0].partition("://")
        if path in ("", "/", "/:memory:") and scheme != url:
            raise StateError(
                "a journal in memory dies with the master it should outlive",
                where=f"state: {url}",
                remedy="write `state: sqlite` for a file in the run's folder",
            )
        self.path = Path(run_dir, path.removeprefix("/") or SQLITE_FILE).absolute()
        if not path and self.path.is_symlink():
            what, remedy = (
                "the journal is a link, which could lead to a database of others",
                "put the file itself there",
            )
            raise StateError(what, where=str(self.path), remedy=f"{remedy}, or name it: state: sqlite:////FILE")
        self._kept: sqlite3.Connection | None = None

    @property
    def place(self) -> str:
        return f"sqlite:///{self.path}"

    def connect(self) -> None:
        if self._exists():
            with self._connection():
                pass

    def prepare(self) -> None:
        with suppress(OSError):  # a reader of the file could lock it, and stop the master
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        with self._connection() as connection:
            for statement in TABLES:
                connection.cursor().execute(statement)
            connection.commit()
            self._reserve(connection)

    def root(self) -> str | None:
        return self._one("SELECT data FROM rolemesh_roots WHERE job_id = ?")

    def head(self) -> str | None:
        return self._one("SELECT data FROM rolemesh_heads WHERE job_id = ?")

    def records(self, first: int, last: int) -> list[Numbered]:
        select = "SELECT seq, data FROM rolemesh_records WHERE job_id = ? AND seq BETWEEN ? AND ? ORDER BY seq"
        with self._connection() as connection:
            found: list[Numbered] = connection.cursor().execute(select, (self.job_id, first, last)).fetchall()
        return found

    def write(
        self,
        before: str | None,
        after: str,
        *,
        records: Sequence[Numbered] = (),
        first: int | None = None,
        head: str | None = None,
    ) -> bool:
        job = self.job_id
        with self._connection() as connection:
            cursor = connection.cursor()
            if before is None:
                cursor.execute("INSERT OR IGNORE INTO rolemesh_roots VALUES (?, ?)", (job, after))
            else:
                change = "UPDATE rolemesh_roots SET data = ? WHERE job_id = ? AND data = ?"
                cursor.execute(change, (after, job, before))
            if not cursor.rowcount:
                connection.rollback()
                return False
            if records:
                rows = [(job, seq, data) for seq, data in records]
                cursor.executemany("INSERT INTO rolemesh_records VALUES (?, ?, ?)", rows)
            if first is not None:
                cursor.execute("DELETE FROM rolemesh_records WHERE job_id = ? AND seq < ?", (job, first))
            if head is not None:
                cursor.execute("INSERT OR REPLACE INTO rolemesh_heads VALUES (?, ?)", (job, head))
            connection.commit()
        return True

    def block(self, seconds: float) -> None:
        with self._connection() as connection:
            connection.cursor().execute("UPDATE rolemesh_roots SET data = data WHERE job_id = ?", (self.job_id,))
            time.sleep(seconds)
            connection.rollback()

    def close(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            with suppress(sqlite3.Error):
                kept.close()

    def _one(self, select: str) -> str | None:
        if not self._exists():
            return None
        with self._connection() as connection:
            found_in = connection.cursor().execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            tables = {name for (name,) in found_in}
            if not tables >= {"rolemesh_roots", "rolemesh_records"}:  # a view of that name may have no end
                if tables.intersection(OLDER):
                    raise StateError(
                        "there is no journal of this job in the present format, but there are journals of an older "
                        "rolemesh",
                        where=self.place,
                        remedy="read it with the rolemesh that wrote it; events.jsonl in the run's folder has the "
                        "events, and --resume goes on from the run's snapshots",
                    )
                return None
            found = connection.cursor().execute(select, (self.job_id,)).fetchone()
        return None if found is None else str(found[0])

    def _exists(self) -> bool:
        try:
            return self.path.exists()
        except OSError as error:
            what = f"the journal cannot be reached: {error.strerror}"
            raise StateUnavailableError(what, where=self.place, remedy=BROKEN) from error

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Yield the one connection. An error becomes a `StateError` with place and remedy.

        SQLite frees its log when the last connection is closed, so the connection stays open. It is closed after an
        error of the disk, since it may take what it missed for damage, and if it was opened when nobody could write the
        file, since it stays read-only.
        """
        try:
            if self._kept is None:
                self._kept = self._open()
            yield self._kept
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter is damage in a text
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in CLOSING:  # Python's own errors have none
                self.close()
            elif self._kept is not None:
                with suppress(sqlite3.Error):
                    self._kept.rollback()
            raise self._error(error) from error

    def _open(self) -> sqlite3.Connection:
        # The lock of whoever holds the store for one thread at a time is enough.
        connection = sqlite3.connect(str(self.path), timeout=BUSY_S, check_same_thread=False)
        try:
            _keep_a_log(connection)
            for pragma in ("synchronous=FULL", "temp_store=MEMORY", f"wal_autocheckpoint={CHECKPOINT_PAGES}"):
                connection.cursor().execute(f"PRAGMA {pragma}").fetchall()
        except BaseException:
            connection.close()
            raise
        return connection

    def _reserve(self, connection: sqlite3.Connection) -> None:
        """Reserve the space that the journal will need, so that a disk that fills up later does not stop it.

        The file keeps freed pages, and the log is written from its start again. If there is no space, nothing is
        reserved.
        """
        with suppress(OSError):
            if os.path.getsize(f"{self.path}-wal") >= ROOM_BYTES:
                return
        try:
            with closing(connection.cursor()) as cursor:
                cursor.execute("CREATE TABLE IF NOT EXISTS rolemesh_room (data BLOB)")
                cursor.execute(f"INSERT INTO rolemesh_room VALUES (zeroblob({ROOM_BYTES}))")
                connection.commit()
                cursor.execute("DELETE FROM rolemesh_room")
                connection.commit()
        except sqlite3.Error:
            with suppress(sqlite3.Error):
                connection.rollback()

    def _error(self, error: sqlite3.Error | UnicodeDecodeError) -> StateError:
        text = str(error)
        if type(error) in (sqlite3.DatabaseError, UnicodeDecodeError) or "malformed" in text or "no such" in text:
            return JournalDamagedError(
                f"the journal is damaged: {text}",
                where=self.place,
                remedy="restore the database from a backup; events.jsonl in the run's folder is a copy to read, "
                "nothing recovers from it",
            )
        if "locked" in text:
            remedy = f"another process has held the database's lock for {BUSY_S} s; find it and end it"
        elif "full" in text:
            remedy = "make room where the database is"
        else:
            remedy = "check that the folder is there, that this user may write it, and `state` in the job file"
        return StateUnavailableError(f"the journal cannot be reached: {text}", where=self.place, remedy=remedy)


def _keep_a_log(connection: sqlite3.Connection) -> None:
    """Switch to WAL mode. SQLite waits for other writers, but not for a process that switches the same new file at this
    moment."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            connection.cursor().execute("PRAGMA journal_mode=WAL").fetchall()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)
