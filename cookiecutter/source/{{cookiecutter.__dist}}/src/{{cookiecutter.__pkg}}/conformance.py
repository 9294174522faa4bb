"""The tests that every source must pass; the wheel ships them, and names them in its entry points."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rolemesh_testing import SourceConformance

__all__ = ["Conformance", "append"]

TABLE = "CREATE TABLE IF NOT EXISTS records (id INTEGER PRIMARY KEY, shard TEXT NOT NULL, body TEXT NOT NULL)"


class Conformance(SourceConformance):
    """Data for the tests; `rolemesh plugins check` runs them where the wheel is installed."""

    plugin = "{{ cookiecutter.name }}"
    options = {"database": "rows.db"}
    bad_options = ({"database": None}, {"table": "no table"}, {"tables": "records"})

    def add(self, base: Path, partition: int, rows: Sequence[Mapping[str, Any]]) -> None:
        append(base / "rows.db", f"shard-{partition}", rows)

    def finish(self, base: Path) -> None:
        with closing(sqlite3.connect(base / "rows.db")) as database, database:
            database.execute("CREATE TABLE finished (at TEXT)")


def append(path: Path, shard: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to a shard of the table, which is made if there is none."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(TABLE)
        given = [(shard, json.dumps(row)) for row in rows]
        database.executemany("INSERT INTO records (shard, body) VALUES (?, ?)", given)
