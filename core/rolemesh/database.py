"""How a job's database is opened, by its URL: waits that end, room that is there, and what is passing trouble.

What is written there is the business of `rolemesh.state`. SQLAlchemy is imported when a database is opened.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolemesh.errors import StateError

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine

__all__ = ["BUSY_S", "connect", "parse", "preallocate"]

SQLITE_FILE = "state.sqlite"
BUSY_S = 2
"""How long to wait for another writer's lock, or for the server to accept a connection, in seconds.

Whoever has time tries again. Shorter than half of the shortest lease, so that nobody takes the wait for a death.
"""
SILENT_PEER = {"keepalives": 1, "keepalives_idle": 2, "keepalives_interval": 1, "keepalives_count": 3}
"""libpq: a server that is gone without a word is noticed after 5 s without traffic."""
ROOM_BYTES = 4 << 20
"""Room that SQLite's file and its log get at once. A journal is compacted, so that a usual job's fits into it."""
CHECKPOINT_PAGES = 256
"""After so many pages SQLite moves its log into the file and begins it again: well within its room."""


def parse(url: str, run_dir: Path) -> URL:
    """`url` as SQLAlchemy has it; ``sqlite`` and relative paths are in `run_dir`. Raises `StateError`."""
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


def connect(url: URL) -> Engine:
    """An engine whose connections wait for nothing longer than a few seconds. Raises `StateError` without a driver."""
    from sqlalchemy import create_engine, event

    sqlite = url.get_backend_name() == "sqlite"
    arguments = {name: value for name, value in _limits(url).items() if name not in url.query}
    try:
        engine = create_engine(url, connect_args=arguments, pool_pre_ping=not sqlite, hide_parameters=True)
    except ImportError as error:
        raise StateError(
            f"the driver of this database is not installed: {error}",
            where=url.render_as_string(hide_password=True),
            remedy=f"pip install {error.name or url.get_driver_name()}, or use state: sqlite",
        ) from error
    if sqlite:
        event.listen(engine, "connect", _set_pragmas)
    elif url.get_backend_name() == "postgresql":
        event.listen(engine, "connect", _set_timeouts)
    return engine


def preallocate(engine: Engine) -> None:
    """Take the room that the journal is going to need, so that a disk that fills up later does not stop it.

    Only for SQLite: its file keeps pages that were freed, and its log is written from the start again. What there is
    no room for is not taken. The log is given back when the last connection is closed, so `engine` must keep one.
    """
    path = str(engine.url.database)
    with suppress(OSError):
        if os.path.getsize(f"{path}-wal") >= ROOM_BYTES:
            return
    with closing(engine.raw_connection()) as connection, suppress(Exception):
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE IF NOT EXISTS rolemesh_room (data BLOB)")
        cursor.execute(f"INSERT INTO rolemesh_room VALUES (zeroblob({ROOM_BYTES}))")
        connection.commit()
        cursor.execute("DELETE FROM rolemesh_room")
        connection.commit()


def _limits(url: URL) -> dict[str, Any]:
    """What each database's driver calls the longest waits; what the URL says itself goes first."""
    match url.get_backend_name(), url.get_driver_name():
        case "sqlite", _:
            return {"timeout": BUSY_S}
        case "postgresql", "psycopg" | "psycopg2":
            return {"connect_timeout": BUSY_S, **SILENT_PEER, "tcp_user_timeout": 2 * BUSY_S * 1000}
        case "mysql" | "mariadb", "pymysql" | "mysqldb":
            return {"connect_timeout": BUSY_S, "read_timeout": 2 * BUSY_S, "write_timeout": 2 * BUSY_S}
    return {}


def _set_pragmas(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA temp_store=MEMORY")
    cursor.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
    cursor.close()


def _set_timeouts(connection: Any, _record: Any) -> None:
    """So that a master that hangs in the middle of a transaction does not keep its successor from the job's row."""
    cursor = connection.cursor()
    cursor.execute(f"SET lock_timeout = '{BUSY_S}s'")
    cursor.execute(f"SET statement_timeout = '{2 * BUSY_S}s'")
    cursor.execute(f"SET idle_in_transaction_session_timeout = '{500 * BUSY_S}ms'")
    cursor.close()
    connection.commit()
