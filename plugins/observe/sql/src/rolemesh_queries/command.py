"""`rolemesh sql`: query a run."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from rolemesh.cli.arguments import JobName, RunsDir
from rolemesh.cli.output import print_table
from rolemesh.runs.run import runs_folder
from rolemesh_facts.finding import readable_run
from rolemesh_queries.database import QueryError, answer, opened
from rolemesh_queries.formats import FORMATS
from rolemesh_queries.tables import TABLES, named

__all__ = ["command"]


class Format(StrEnum):
    """How the answer is printed."""

    table = "table"
    csv = "csv"
    json = "json"


def command(
    job: JobName,
    query: Annotated[str, typer.Argument(help="A SELECT in DuckDB's SQL; - reads it from stdin.")] = "",
    format: Annotated[Format, typer.Option(help="How the answer is printed.")] = Format.table,
    tables: Annotated[bool, typer.Option("--tables", help="List the tables and their columns.")] = False,
    runs_dir: RunsDir = None,
) -> None:
    """Query a run with SQL: the ranks' records, edges, events, metrics, kept rows and recoveries.

    The job may be running, ended or killed. JOB may also be the folder of a run, or a copy of one. The query sees a
    copy in memory: it can change nothing, and it reaches neither files nor the network.

    Exit code: 0, 2 if there is no such job or the query is wrong.

    Examples:

      rolemesh sql grpo "select role, sum(waiting_s) / sum(wall_s) as share from ranks group by role"

      rolemesh sql grpo "select * from recoveries" --format json

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
    with opened(run_dir, named(query)) as database:
        columns, rows = answer(database, query)
        for part in FORMATS[format.value](columns, rows):
            sys.stdout.write(part)


def _describe() -> None:
    for name, table in TABLES.items():
        print(f"{name}: {table.row}")
        print_table(
            ("  column", "type", "meaning"),
            ((f"  {column}", each.type, each.meaning) for column, each in table.columns.items()),
        )
        print()
