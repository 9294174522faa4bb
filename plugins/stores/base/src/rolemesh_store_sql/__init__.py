"""Journals in PostgreSQL, MySQL or MariaDB, with SQLAlchemy Core."""

from __future__ import annotations

from rolemesh_store_sql.store import SqlStore

__all__ = ["SqlStore"]
