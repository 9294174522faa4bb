"""``rolemesh validate``: check everything about a job that does not need it to start."""

from __future__ import annotations

import sys

import typer

from rolemesh.cli.arguments import JobArgument, JsonFlag, Overrides
from rolemesh.cli.output import error_records, print_error, print_json
from rolemesh.errors import RolemeshError
from rolemesh.job.prepared import instances, prepare


def command(job: JobArgument, overrides: Overrides = None, as_json: JsonFlag = False) -> None:
    """Check a job file, its plugins, their options and the flow. Starts nothing. Exit code 2 if
    something is wrong."""
    try:
        prepared = prepare(job, overrides or ())
        file, selection, graph = prepared.job, prepared.selection, prepared.graph
        instances((*selection.failover, *selection.diagnosers, *selection.observers))
        prepared.plan_with_plenty()
        warnings = [*(selection.engine.cls.check(prepared) or ())]
    except RolemeshError as error:
        failed = {"valid": False, "warnings": [], "problems": error_records(error)}
        print_json(failed) if as_json else print_error(error)
        raise typer.Exit(error.exit_code) from None
    ranks = sum(role.world_size for role in file.spec.roles.values())
    if as_json:
        keys = ("kind", "name", "distribution", "version")
        plugins = [{key: getattr(record, key) for key in keys} for record in selection.records]
        found = {"valid": True, "name": file.spec.name, "ranks": ranks, "plugins": plugins}
        print_json(found | {"warnings": warnings, "problems": []})
        return
    print(*(f"warning: {text}\n" for text in warnings), sep="", end="", file=sys.stderr)
    counted = {
        "role": len(file.spec.roles),
        "rank": ranks,
        "operator call": len(graph.ops),
        "edge": len(graph.edges),
    }
    steps = "no last step" if file.spec.steps is None else _count(file.spec.steps, "step")
    told = ", ".join(_count(number, noun) for noun, number in counted.items())
    print(f"{job}: ok. Job {file.spec.name!r}: {told}, {steps}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
