"""A role that writes rows into the database, and one that takes what the source reads there."""

import json
import sqlite3
from contextlib import closing

from rolemesh import Batch, RankContext, flow

TABLE = "CREATE TABLE IF NOT EXISTS records (id INTEGER PRIMARY KEY, shard TEXT NOT NULL, body TEXT NOT NULL)"
ROWS = 8


def write(ctx: RankContext) -> None:
    """Eight rows a step in two shards. A step that is repeated writes the same rows, so they are there once."""
    first = ctx.step * ROWS
    rows = [(n, f"shard-{n % 2}", json.dumps({"number": n})) for n in range(first, first + ROWS)]
    with closing(sqlite3.connect(ctx.base / "rows.db", timeout=60.0)) as database, database:
        database.execute(TABLE)
        database.executemany("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", rows)


def mean(rows: Batch, ctx: RankContext) -> None:
    """The mean of the rows' numbers, as a metric."""
    if rows.rows:
        ctx.metric(number=sum(rows["number"]) / rows.rows)


@flow
def rows(job):
    """Called once, to see what goes where; what the calls return are handles."""
    job.writer.write()
    job.mean.mean(job.data.next())
