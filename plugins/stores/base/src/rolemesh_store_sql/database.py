"""Connect to a database server by its URL, with limits on all waits."""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from rolemesh_durable.stores import StateError

__all__ = ["BUSY_S", "connect", "parse"]

BUSY_S = 2
"""Maximum seconds of a wait for another writer's lock, or for the server to accept a connection.

The caller tries again. The value is shorter than half of the shortest lease, so that nobody mistakes the wait for a
death.
"""
SILENT_PEER = {"keepalives": 1, "keepalives_idle": 2, "keepalives_interval": 1, "keepalives_count": 3}
"""Options of libpq: a server that vanishes is noticed after 5 s without traffic."""


def parse(url: str) -> URL:
    """Return `url` as a SQLAlchemy URL. Raises `StateError`."""
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except (ArgumentError, ValueError) as error:
        raise StateError(
            f"`state` is not a database URL: {error}",
            where="engine.options.state",
            remedy="write `sqlite`, or a SQLAlchemy URL such as postgresql+psycopg://user:${PASSWORD}@host/database",
        ) from error
    except ImportError as error:
        raise _no_driver(url, error) from error
    return parsed


def connect(url: URL) -> Engine:
    """Return an engine whose connections never wait longer than a few seconds. Raises `StateError` if the driver is
    missing."""
    arguments = {name: value for name, value in _limits(url).items() if name not in url.query}
    try:
        engine = create_engine(url, connect_args=arguments, pool_pre_ping=True, hide_parameters=True)
    except ImportError as error:
        raise _no_driver(url.render_as_string(hide_password=True), error) from error
    if url.get_backend_name() == "postgresql":
        event.listen(engine, "connect", _set_timeouts)
    return engine


def _no_driver(where: str, error: ImportError) -> StateError:
    return StateError(
        f"the driver of this database is not installed: {error}",
        where=where,
        remedy=f"pip install {error.name or 'its driver'}, or use engine: {{options: {{state: sqlite}}}}",
    )


def _limits(url: URL) -> dict[str, Any]:
    """Return the time limits under the names of each database's driver. Those in the URL take precedence."""
    match url.get_backend_name(), url.get_driver_name():
        case "postgresql", "psycopg" | "psycopg2":
            return {"connect_timeout": BUSY_S, **SILENT_PEER, "tcp_user_timeout": 2 * BUSY_S * 1000}
        case "mysql" | "mariadb", "pymysql" | "mysqldb":
            return {"connect_timeout": BUSY_S, "read_timeout": 2 * BUSY_S, "write_timeout": 2 * BUSY_S}
    return {}


def _set_timeouts(connection: Any, _record: Any) -> None:
    """Limit the duration of transactions, so that a master that hangs in one does not block its successor."""
    cursor = connection.cursor()
    cursor.execute(f"SET lock_timeout = '{BUSY_S}s'")
    cursor.execute(f"SET statement_timeout = '{2 * BUSY_S}s'")
    cursor.execute(f"SET idle_in_transaction_session_timeout = '{500 * BUSY_S}ms'")
    cursor.close()
    connection.commit()
