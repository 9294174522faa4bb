"""A real SQLite whose calls can fail: full, refusing, locked by somebody else, and cut off in a commit.

It is full as SQLite itself is when its file may not grow, and locked by a real lock. After a power cut, sectors of the
log remain of a commit that was under way. SQLite promises to keep the data that it has synced before, and the
simulation believes it.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rolemesh_durable.journal import sqlite

__all__ = ["Database"]

SECTOR = 512
UNBOUNDED = 1 << 30


class Database:
    """The database at `path`."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path, self.rng = path, rng
        self.full = self.calm = False
        """`calm`: calls are not looked at."""
        self.refuses = 0.0
        """How often a call fails; a commit that fails has been made in half of the cases."""
        self.passing: Callable[[], None] = lambda: None
        """Called before each call, and after a commit: may raise, as a master that is killed there."""
        self._lock: sqlite3.Connection | None = None
        self._before: tuple[bytes, bytes] | None = None

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Connections to SQLite are ours."""
        outer, connect = self, sqlite3.connect

        class Cursor(sqlite3.Cursor):
            def execute(self, sql: str, *arguments: Any) -> Any:
                outer._call(self.connection, sql)
                return super().execute(sql, *arguments)

            def executemany(self, sql: str, *arguments: Any) -> Any:
                outer._call(self.connection, sql)
                return super().executemany(sql, *arguments)

        class Connection(sqlite3.Connection):
            def cursor(self, factory: Any = Cursor) -> Any:
                return super().cursor(factory)

            def commit(self) -> None:
                outer._commit(self, super().commit)

        def connected(*arguments: Any, **more: Any) -> sqlite3.Connection:
            return connect(*arguments, **more, factory=Connection)

        with (
            patch.object(sqlite3, "connect", connected),
            patch.object(sqlite, "BUSY_S", 0),  # who waits for the lock would wait for ever: nobody acts meanwhile
            patch.object(sqlite, "ROOM_BYTES", 16 << 10),
            patch.object(sqlite, "CHECKPOINT_PAGES", 16),
        ):
            yield
            self.locked = False

    def _call(self, connection: sqlite3.Connection, sql: str) -> None:
        if self.calm or sql.startswith("PRAGMA"):
            return
        self.passing()
        if self.rng.random() < self.refuses:
            raise sqlite3.OperationalError("disk I/O error")
        pages = UNBOUNDED
        if self.full:
            ((pages,),) = sqlite3.Connection.cursor(connection).execute("PRAGMA page_count")
        sqlite3.Connection.cursor(connection).execute(f"PRAGMA max_page_count = {pages}").fetchall()

    def _commit(self, connection: sqlite3.Connection, commit: Callable[[], None]) -> None:
        if self.calm or not connection.in_transaction:
            commit()
            return
        failing = self.rng.random() < self.refuses
        if failing and self.rng.random() < 0.5:
            raise sqlite3.OperationalError("disk I/O error")
        self.passing()
        self._before = self._files()
        commit()
        self.passing()
        self._before = None
        if failing:
            raise sqlite3.OperationalError("disk I/O error")

    @property
    def locked(self) -> bool:
        """Somebody else holds the lock of writers."""
        return self._lock is not None

    @locked.setter
    def locked(self, locked: bool) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if locked and self.path.exists():
            self._lock = sqlite3.Connection(str(self.path), timeout=0, isolation_level=None)
            try:
                self._lock.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                self.locked = False

    def epoch(self) -> int:
        """Return the epoch of the last claim of the journal, even if its master died before it knew."""
        with closing(sqlite3.Connection(str(self.path))) as connection:
            ((root,),) = connection.execute("SELECT data FROM rolemesh_roots")
        return int(json.loads(root.partition(" ")[2])[0])

    # ----------------------------------------------------------------------------------------------------- deaths

    @contextmanager
    def abandoned(self, *, power_cut: bool) -> Iterator[None]:
        """Within it the last connections are closed: the files stay as the death of all of them leaves them."""
        self.locked = False
        files = self._files()
        if power_cut and self._before is not None and self._before[0] == files[0]:
            files = files[0], self._torn(self._before[1], files[1])
        self._before = None
        self.calm = True
        yield
        held = {os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}
        assert str(self.path) not in held, "a dead master holds its connection"
        self.calm = False
        for path, data in zip(self._paths, files, strict=True):
            if data:
                path.write_bytes(data)
            else:
                path.unlink(missing_ok=True)
        Path(f"{self.path}-shm").unlink(missing_ok=True)

    def _torn(self, before: bytes, after: bytes) -> bytes:
        before = before.ljust(len(after), b"\0")
        cuts = range(0, len(after), SECTOR)
        return b"".join((after if self.rng.random() < 0.7 else before)[at : at + SECTOR] for at in cuts)

    @property
    def _paths(self) -> tuple[Path, Path]:
        return self.path, Path(f"{self.path}-wal")

    def _files(self) -> tuple[bytes, bytes]:
        file, log = (path.read_bytes() if path.exists() else b"" for path in self._paths)
        return file, log
