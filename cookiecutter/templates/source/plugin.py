"""The source: rows of a table in an SQLite database. A partition is a shard, and an offset is the id of a row."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field
from rolemesh_sources import Offset, Reader, Records, Source, SourceError

__all__ = ["{{ cookiecutter.__class }}"]

IDENTIFIER = r"^[A-Za-z_][A-Za-z0-9_]*$"


class {{ cookiecutter.__class }}(Source):
    """Reads the rows of a table with the columns ``id`` (INTEGER PRIMARY KEY), ``shard`` and ``body``, a JSON mapping.

    Rows are only ever added, with growing ids. The stream ends when the database has a table named `end`.
    """

    class Options(BaseModel, extra="forbid"):
        """Options in the job file."""

        database: str = Field(description="The database's file, relative to the job file.")
        table: str = Field(default="records", pattern=IDENTIFIER, description="The table that is read.")
        end: str = Field(default="finished", pattern=IDENTIFIER, description="A table of this name ends the stream.")

    options: Options

    def open(self, reader: Reader) -> None:
        """Remember who reads, and where the database is; it may be made later."""
        self.reader = reader
        self.path = Path(reader.base, self.options.database)

    def partitions(self) -> Sequence[str]:
        """The shards that have rows."""
        return [shard for (shard,) in self._rows(f"SELECT DISTINCT shard FROM {self.options.table} ORDER BY shard")]

    def read(self, partition: str, offset: Offset, max_rows: int) -> Records:
        """The rows of the shard behind the row `offset`. If that is gone, others may be, too."""
        query = f"SELECT id, body FROM {self.options.table} WHERE shard = ? AND id >= ? ORDER BY id LIMIT ?"
        found = self._rows(query, partition, -1 if offset is None else offset, max_rows + 1)
        if offset is None:
            found = found[:max_rows]
        elif found[:1] and found[0][0] == offset:
            found = found[1:]
        else:
            remedy = "keep a row until a checkpoint of the job has what was made of it, and the last one for good"
            raise SourceError(f"row {offset} of shard {partition!r} is gone", where=str(self.path), remedy=remedy)
        return Records([self._record(*row) for row in found], found[-1][0] if found else offset)

    def _record(self, number: int, body: str) -> dict[str, Any]:
        """Return a row's body. Raises `SourceError` if it is no JSON mapping."""
        try:
            record = json.loads(body)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            remedy = "correct what writes it"
            raise SourceError(f"the body of row {number} is no JSON mapping", where=str(self.path), remedy=remedy)
        return record

    def ended(self, position: Mapping[str, Offset]) -> bool:
        """Whether the table that ends the stream is there, and this rank has read all rows of its shards."""
        # The end is looked for first: what is written before it is then seen.
        if not self._rows("SELECT name FROM sqlite_master WHERE type = 'table' AND name = ?", self.options.end):
            return False
        rank, size = self.reader.rank, self.reader.world_size
        own = [shard for shard in self.partitions() if self.rank_of(shard, size) == rank]
        return self.lag({shard: position.get(shard) for shard in own}) == 0

    def lag(self, position: Mapping[str, Offset]) -> float:
        """How many rows are behind `position`."""
        query = f"SELECT COUNT(*) FROM {self.options.table} WHERE shard = ? AND id > ?"
        counts = [self._rows(query, p, -1 if at is None else at) for p, at in position.items()]
        return float(sum(found[0][0] for found in counts if found))

    def _rows(self, query: str, *values: Any) -> list[Any]:
        """Return the database's answer; nothing as long as it, or the table, does not exist. Raises `SourceError`."""
        if not self.path.exists():
            return []
        try:
            with closing(sqlite3.connect(self.path, timeout=60.0)) as database:
                return database.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            remedy = f"look at it with: sqlite3 {self.path} .schema"
            raise SourceError(f"the database cannot be read: {error}", where=str(self.path), remedy=remedy) from error
