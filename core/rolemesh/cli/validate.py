"""``rolemesh validate``: everything that can be said about a job without starting it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolemesh.cli._output import error_records, print_error, print_json
from rolemesh.errors import RolemeshError
from rolemesh.job.planning import check_strategies
from rolemesh.job.prepared import prepare
from rolemesh.plugins.manager import JobPlugins

__all__ = ["command"]


def command(
    job: Annotated[Path, typer.Argument(help="The job file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Values to set, e.g. roles.trainer.world_size=4.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check a job file, its plugins, their options and the flow, without Ray. Exit code 2 if something is wrong."""
    try:
        prepared = prepare(job, overrides or ())
        file, selection, graph = prepared.job, prepared.selection, prepared.graph
        made = JobPlugins()
        for index, selected in enumerate((*selection.failover, *selection.diagnosers, *selection.observers)):
            made.create(str(index), selected.record, selected.cls, selected.options, selected.where)
        check_strategies(file, selection, graph)
    except RolemeshError as error:
        if as_json:
            print_json({"valid": False, "problems": error_records(error)})
        else:
            print_error(error)
        raise typer.Exit(error.exit_code) from None
    ranks = sum(role.world_size for role in file.spec.roles.values())
    if as_json:
        plugins = [
            {"kind": r.kind, "name": r.name, "distribution": r.distribution, "version": r.version}
            for r in selection.records
        ]
        print_json({"valid": True, "name": file.spec.name, "ranks": ranks, "plugins": plugins, "problems": []})
        return
    print(
        f"{job}: ok. Job {file.spec.name!r}: {_count(len(file.spec.roles), 'role')}, {_count(ranks, 'rank')}, "
        f"{_count(len(graph.ops), 'operator call')}, {_count(len(graph.edges), 'edge')}, "
        f"{_count(file.spec.steps, 'step')}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
