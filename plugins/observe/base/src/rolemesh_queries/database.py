"""A copy of a run in memory, for one query that reaches nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import duckdb

from rolemesh.api.rank_ref import RankRef
from rolemesh.errors import RolemeshError
from rolemesh_facts import RunFacts
from rolemesh_facts.ranks import processes_of
from rolemesh_facts.recoveries import Story, stories
from rolemesh_queries.contents import (
    LIMIT,
    PHASES,
    Arrays,
    arrays,
    event_rows,
    gpu_loads,
    kept,
    measured,
    moment,
    node_loads,
    read_events,
    record,
)
from rolemesh_queries.tables import RECORDED, TABLES, created
from rolemesh_recorder.lines import FlowFile, Head
from rolemesh_recorder.reading import read_flow, read_record, recorded_ranks

__all__ = ["QueryError", "answer", "opened", "write_parquet"]

MEMORY: Final = "4GB"
"""Maximum memory of a query."""
SETTINGS: Final = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "memory_limit": MEMORY,
    "temp_directory": "",
    "threads": 2,
}
LOCKS: Final = ("python_enable_replacements = false", "enable_external_access = false", "lock_configuration = true")
"""Settings that keep a query from files, the network and variables of this process."""

_AMOUNTS: Final = "computing / 1e6, waiting / 1e6, saving / 1e6, idle / 1e6, other / 1e6"
_ENGINE: Final = "greatest(0, d - computing - waiting - saving - idle - other)"
_FILLS: Final = {
    "spans": """INSERT INTO spans SELECT processes.role, rank, generation, phases.name, ops.label,
        CASE WHEN edge >= 0 THEN edge END, called(edge), step, make_timestamp(t), d / 1e6
        FROM fresh JOIN processes ON process = processes.id JOIN phases ON phase = phases.id
        LEFT JOIN ops ON op = ops.id""",
    "lives": """INSERT INTO spans SELECT processes.role, rank, generation, phases.name, NULL, NULL, NULL, NULL,
        make_timestamp(t), d / 1e6
        FROM fresh JOIN processes ON process = processes.id JOIN phases ON phase = phases.id""",
    "accounts": f"""INSERT INTO accounts SELECT role, rank, generation, make_timestamp(t), d / 1e6, {_AMOUNTS},
        {_ENGINE} / 1e6, steps, step FROM fresh JOIN processes ON process = processes.id""",
    "travels": "INSERT INTO travels SELECT edge, nbytes, travelled FROM fresh",
    "waits": """INSERT INTO waits SELECT role, rank, generation, make_timestamp(t), edge, us / 1e6
        FROM fresh JOIN processes ON process = processes.id""",
}
_RANKS: Final = """INSERT INTO ranks SELECT role, rank, generation, any_value(node), any_value(pid),
    make_timestamp(any_value(started)), coalesce(max(began + to_microseconds(CAST(seconds * 1e6 AS BIGINT))),
    make_timestamp(any_value(started + setup))), any_value(setup) / 1e6, coalesce(sum(seconds), 0),
    coalesce(sum(computing_s), 0), coalesce(sum(waiting_s), 0), coalesce(sum(saving_s), 0), coalesce(sum(idle_s), 0),
    coalesce(sum(other_s), 0), coalesce(sum(engine_s), 0), coalesce(sum(steps), 0), max(step)
    FROM processes LEFT JOIN accounts USING (role, rank, generation) GROUP BY role, rank, generation ORDER BY ALL"""
_EDGES: Final = """INSERT INTO edges SELECT e.id, p.label, c.label, param, partition, lag, credits,
    coalesce((SELECT sum(waited_s) FROM waits w WHERE w.edge = e.id AND w.role = c.role), 0),
    coalesce((SELECT sum(waited_s) FROM waits w WHERE w.edge = e.id AND w.role = p.role), 0),
    (SELECT sum(nbytes) FROM travels t WHERE t.edge = e.id),
    (SELECT sum(travelled) FROM travels t WHERE t.edge = e.id)
    FROM flow_edges e LEFT JOIN ops p ON src = p.id LEFT JOIN ops c ON dst = c.id ORDER BY e.id"""
_HELPERS: Final = (
    "CREATE TEMP TABLE processes (id BIGINT, role VARCHAR, rank BIGINT, generation BIGINT, node VARCHAR, pid BIGINT, "
    "started BIGINT, setup BIGINT)",
    "CREATE TEMP TABLE travels (edge BIGINT, nbytes BIGINT, travelled BIGINT)",
    "CREATE TEMP TABLE phases (id BIGINT, name VARCHAR)",
    "CREATE TEMP TABLE ops (id BIGINT, role VARCHAR, label VARCHAR)",
    "CREATE TEMP TABLE callers (pair BIGINT, role VARCHAR)",
    "CREATE TEMP TABLE flow_edges (id BIGINT, src BIGINT, dst BIGINT, param VARCHAR, partition VARCHAR, lag VARCHAR, "
    "credits BIGINT)",
    "CREATE TEMP MACRO called(edge) AS CASE WHEN edge < -1 THEN "
    "(SELECT role FROM callers WHERE pair = (-2 - edge) >> 20) || "
    "CASE WHEN (-2 - edge) & 1048575 > 0 THEN '/' || (((-2 - edge) & 1048575) - 1) ELSE '' END END",
)


class QueryError(RolemeshError):
    """The query is wrong, or too large."""


@contextmanager
def opened(run_dir: Path, tables: Iterable[str], output: Path | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Return a database that has all tables, of which `tables` have their content.

    Queries can reach nothing else, apart from the file `output`, which `write_parquet` writes.
    """
    wanted = set(tables)
    with duckdb.connect(":memory:", config=dict(SETTINGS)) as database:
        for name in TABLES:
            database.execute(created(name))
        if wanted & set(RECORDED):
            _fill_record(database, run_dir, wanted)
        if wanted & {"events", "recoveries"}:
            _fill_events(database, run_dir)
        if "metrics" in wanted:
            value = "coalesce(value, 'nan')"  # of arrays that are registered, DuckDB takes NaN for NULL
            _fill(database, "metrics", measured(run_dir), time="make_timestamp(time)", value=value)
        if "costs" in wanted:
            _fill(database, "costs", [RunFacts(run_dir).costs()])
        if "rows" in wanted:
            _fill(database, "rows", kept(run_dir))
        for name, content in (("nodes", node_loads), ("gpus", gpu_loads)):
            if name in wanted:
                _fill(database, name, content(run_dir), began="make_timestamp(began)")
        if output is not None:
            database.execute(f"SET allowed_paths = [{_quoted(output)}]")
        for lock in LOCKS:
            database.execute(f"SET {lock}")
        yield database


def answer(database: duckdb.DuckDBPyConnection, sql: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    """Run one query: return the names of its columns, and an iterator over its rows. Raises `QueryError`."""
    try:
        result = database.execute(_query(database, sql, duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN))
    except (duckdb.Error, UnicodeError) as error:
        raise _refused(error) from error
    return [column[0] for column in result.description or ()], _rows(result)


def write_parquet(database: duckdb.DuckDBPyConnection, sql: str, output: Path) -> None:
    """Run one query, and write its rows to the file for which the database was opened. Raises `QueryError`."""
    try:
        query = _query(database, sql, duckdb.StatementType.SELECT).query
        database.execute(f'CREATE TEMP VIEW "the answer" AS {query}')  # the query comes last, with all of its comments
        database.execute(f'COPY "the answer" TO {_quoted(output)} (FORMAT parquet, USE_TMP_FILE false)')
    except (duckdb.Error, UnicodeError) as error:
        raise _refused(error) from error


def _query(database: duckdb.DuckDBPyConnection, sql: str, *kinds: Any) -> Any:
    statements = database.extract_statements(sql)
    if len(statements) != 1 or statements[0].type not in kinds:
        raise QueryError("this is not one query", remedy='write one SELECT, such as "select * from ranks"')
    return statements[0]


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _rows(result: Any) -> Iterator[tuple[Any, ...]]:
    try:
        while page := result.fetchmany(1000):
            yield from page
    except duckdb.Error as error:
        raise _refused(error) from error


def _refused(error: Exception) -> QueryError:
    return QueryError(str(error), where="the query", remedy="`rolemesh sql JOB --tables` lists tables and columns")


def _fill_record(database: duckdb.DuckDBPyConnection, run_dir: Path, wanted: set[str]) -> None:
    for helper in _HELPERS:
        database.execute(helper)
    _fill_flow(database, read_flow(run_dir))
    processes = shown = 0
    lacking = (
        {}
        if "ranks" not in wanted
        else {
            (each.role, each.rank, each.generation): each
            for page in read_events(run_dir)
            for each in processes_of(page)
        }
    )
    for ref in recorded_ranks(run_dir):
        heads, found = record(read_record(run_dir, ref.role, ref.rank), processes)
        lives = found["lives"]
        rows = [
            _process(number, ref, head, int(lives["d"][lives["process"] == number].sum()))
            for number, head in enumerate(heads, processes)
        ]
        processes += len(rows)
        for head in heads:
            lacking.pop((ref.role, ref.rank, head.generation), None)
        _insert(database, "processes", rows)
        _insert(database, "phases", list(enumerate(PHASES))[shown:])
        shown = len(PHASES)
        for kind in ("lives", "spans") if "spans" in wanted else ():
            _insert_numbers(database, kind, found[kind])
        _insert_numbers(database, "accounts", found["accounts"])
        _insert_numbers(database, "waits", found["waits"])
        _insert_numbers(database, "travels", found["travels"])
    unrecorded = enumerate(lacking.values() if processes else (), processes)
    _insert(
        database, "processes", [_process(number, RankRef(head.role, head.rank), head, 0) for number, head in unrecorded]
    )
    database.execute(_RANKS)
    database.execute(_EDGES)


def _process(number: int, ref: RankRef, head: Head, setup: int) -> tuple[Any, ...]:
    began = head.t if 0 <= head.t < 1 << 53 else 0
    return number, ref.role, ref.rank, head.generation, head.node, head.pid, began, setup


def _fill_flow(database: duckdb.DuckDBPyConnection, flow: FlowFile | None) -> None:
    if flow is not None:
        _insert(database, "ops", [(op.id, op.role, op.label) for op in flow.ops])
        _insert(database, "callers", [(pair, role) for pair, (_, role) in enumerate(flow.callers)])
        edges = [(e.id, e.src, e.dst, e.param, e.partition, e.lag, e.credits) for e in flow.edges]
        _insert(database, "flow_edges", edges)


def _fill_events(database: duckdb.DuckDBPyConnection, run_dir: Path) -> None:
    told = [event for page in read_events(run_dir) for event in page]
    _fill(database, "events", [list(event_rows(told))], time="make_timestamp(time)")
    found = [_recovery(story) for story in stories(told) if 0 <= story.number < LIMIT]
    _fill(database, "recoveries", [found], began="make_timestamp(began)")


def _recovery(story: Story) -> tuple[Any, ...]:
    failures = [str(failure.get("message", failure.get("text", ""))) for failure in story.failures]
    times = moment(story.began), story.ready_s, story.regained_s
    told = list(story.restarted), story.source, story.reason, failures, list(story.trail)
    return story.number, story.level, *times, *told


def _fill(
    database: duckdb.DuckDBPyConnection, table: str, pages: Iterable[Sequence[Sequence[Any]]], **shaped: str
) -> None:
    """Append pages of rows to a table. `shaped` are the expressions of columns that are not taken as they are."""
    columns = list(TABLES[table].columns)
    for page in pages:
        if page:
            _insert(database, table, page, columns, [shaped.get(column, f'"{column}"') for column in columns])


def _insert(
    database: duckdb.DuckDBPyConnection,
    table: str,
    rows: Sequence[Sequence[Any]],
    columns: Sequence[str] = (),
    taken: Sequence[str] = ("*",),
) -> None:
    if rows:
        names = columns or [f"c{at}" for at in range(len(rows[0]))]
        database.register("fresh", arrays(names, rows))
        database.execute(f"INSERT INTO {table} SELECT {', '.join(taken)} FROM fresh")
        database.unregister("fresh")


def _insert_numbers(database: duckdb.DuckDBPyConnection, kind: str, found: Arrays) -> None:
    if len(found["process"]):
        database.register("fresh", dict(found))
        database.execute(_FILLS[kind])
        database.unregister("fresh")
