"""Rows come in the order of their ids, and what is lost, damaged or cannot be read is an error with its place."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rolemesh_sources import Reader, SourceError
from rolemesh_testing import SourceConformance

from {{ cookiecutter.__pkg }} import {{ cookiecutter.__class }}

TABLE = "CREATE TABLE IF NOT EXISTS records (id INTEGER PRIMARY KEY, shard TEXT NOT NULL, body TEXT NOT NULL)"


class TestConformance(SourceConformance):
    """The tests that every source must pass."""

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


def opened(folder: Path) -> {{ cookiecutter.__class }}:
    source = {{ cookiecutter.__class }}({{ cookiecutter.__class }}.Options(database="rows.db"))
    source.open(Reader("job", "data", 0, 1, str(folder)))
    return source


def test_a_database_that_is_not_there_yet_has_no_partitions(tmp_path: Path) -> None:
    source = opened(tmp_path)
    assert source.partitions() == []
    append(tmp_path / "rows.db", "a", [{"n": 1}])
    assert source.partitions() == ["a"]


def test_rows_of_shards_that_are_written_in_turns_keep_their_order(tmp_path: Path) -> None:
    source = opened(tmp_path)
    for n in range(4):
        append(tmp_path / "rows.db", "ab"[n % 2], [{"n": n}])
    first = source.read("b", None, 1)
    assert (list(first.rows), first.offset) == ([{"n": 1}], 2)
    assert list(source.read("b", first.offset, 9).rows) == [{"n": 3}]
    assert source.lag({"a": None, "b": first.offset}) == 3


def test_a_file_that_is_no_database_is_an_error_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "rows.db").mkdir()
    with pytest.raises(SourceError, match="cannot be read") as raised:
        opened(tmp_path).partitions()
    assert raised.value.where == str(tmp_path / "rows.db")


def test_a_row_that_was_removed_too_early_is_an_error(tmp_path: Path) -> None:
    append(tmp_path / "rows.db", "a", [{"n": 1}, {"n": 2}])
    with closing(sqlite3.connect(tmp_path / "rows.db")) as database, database:
        database.execute("DELETE FROM records WHERE id = 1")
    with pytest.raises(SourceError, match="row 1 of shard 'a' is gone"):
        opened(tmp_path).read("a", 1, 9)


@pytest.mark.parametrize("body", ["{", "[1]"])
def test_a_row_that_is_no_mapping_is_named(tmp_path: Path, body: str) -> None:
    append(tmp_path / "rows.db", "a", [{"n": 1}])
    with closing(sqlite3.connect(tmp_path / "rows.db")) as database, database:
        database.execute("UPDATE records SET body = ?", (body,))
    with pytest.raises(SourceError, match="body of row 1 is no JSON mapping"):
        opened(tmp_path).read("a", None, 9)
