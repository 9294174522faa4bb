"""`rolemesh sql`: query a run."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rolemesh.cli.arguments import JobName, RunsDir
from rolemesh.cli.output import print_table
from rolemesh.runs.run import runs_folder
from rolemesh_facts.finding import readable_run
from rolemesh_facts.output import replaced
from rolemesh_facts.waiting import answered
from rolemesh_queries.database import QueryError, answer, opened, write_parquet
from rolemesh_queries.formats import FORMATS
from rolemesh_queries.tables import TABLES, named

__all__ = ["command"]


class Format(StrEnum):
    """How the answer is written."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"


def command(
    job: JobName,
    query: Annotated[str, typer.Argument(help="A SELECT in DuckDB's SQL; - reads it from stdin.")] = "",
    format: Annotated[Format, typer.Option(help="How the answer is written.")] = Format.table,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file.", metavar="FILE", show_default="stdout")
    ] = None,
    tables: Annotated[bool, typer.Option("--tables", help="List the tables and their columns.")] = False,
    runs_dir: RunsDir = None,
) -> None:
    """Query a run with SQL: the ranks' records, edges, events, metrics, kept rows and recoveries.

    The job may be running, ended or killed. JOB may also be the folder of a run, or a copy of one. The query sees a
    copy in memory: it can change nothing, and it reaches neither files nor the network.

    Exit code: 0, 2 if there is no such job, its store does not answer, the query is wrong, or FILE cannot be written.

    Examples:

      rolemesh sql grpo "select role, sum(waiting_s) / sum(wall_s) as share from ranks group by role"

      rolemesh sql grpo "select * from recoveries" --format json

      rolemesh sql grpo "select * from metrics" --format parquet -o metrics.parquet

      rolemesh sql grpo --tables
    """
    run_dir = readable_run(job, runs_folder(runs_dir))
    if tables:
        _describe()
        return
    if query == "-":
        query = sys.stdin.read()
    if not query.strip():
        raise QueryError(
            "there is no query",
            remedy='write one, such as "select * from ranks"; `rolemesh sql JOB --tables` lists tables',
        )
    if format is Format.parquet and output is None:
        raise QueryError("Parquet is not for a terminal", remedy="name a file: --format parquet -o FILE")
    if output is None:
        with ExitStack() as stack:
            database = answered(run_dir, lambda: stack.enter_context(opened(run_dir, named(query))))
            for part in FORMATS[format.value](*answer(database, query)):
                sys.stdout.write(part)
        return
    try:
        answered(run_dir, lambda: _write(run_dir, query, format, output))
    except OSError as error:
        what, remedy = f"the answer cannot be written: {error.strerror or error}", "choose another place: -o FILE"
        raise QueryError(what, where=str(output), remedy=remedy) from error


def _write(run_dir: Path, query: str, format: Format, output: Path) -> None:
    with replaced(output) as partial, opened(run_dir, named(query), partial) as database:
        if format is Format.parquet:
            write_parquet(database, query, partial)
        else:
            with partial.open("w", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(FORMATS[format.value](*answer(database, query)))


def _describe() -> None:
    for name, table in TABLES.items():
        print(f"{name}: {table.row}")
        print_table(
            ("  column", "type", "meaning"),
            ((f"  {column}", each.type, each.meaning) for column, each in table.columns.items()),
        )
        print()
