"""The frame of the verbs that request something from a running job: the run, the outcome, and the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from rolemesh.api.observer import Event
from rolemesh.cli.output import print_json
from rolemesh.errors import EXIT_FAILED
from rolemesh_durable.api.jobs import LivingRun, MasterGoneError, Run, is_held
from rolemesh_jobs.runs import find

__all__ = ["is_over", "running", "tell"]


def running(job: str, runs_dir: Path | None) -> LivingRun:
    """Return a run that has not ended. Raises `MasterGoneError` if it has."""
    run = find(job, runs_dir)
    if (result := run.result()) is not None:
        raise MasterGoneError(f"{run.name} has ended already: {result.get('status')}", where=str(run.path))
    return run


def is_over(run: Run) -> bool:
    """Return whether the job has left a result. Raises `MasterGoneError` if it has neither a master nor a result."""
    if run.result() is not None:
        return True
    if not is_held(run.path):
        what = f"the master of job {run.name} is gone"
        raise MasterGoneError(what, where=str(run.path), remedy="rolemesh events shows what it journalled last")
    return False


def tell(run: Run, told: Event | None, said: str, asked: Mapping[str, Any], *, as_json: bool, refused: bool) -> None:
    """Print the outcome of a request: as JSON with the keys of `asked`, or as the sentence `said`.

    A refusal goes to stderr. `told` is the event that answers the request, or None if the job ended first; then this
    raises `typer.Exit` with `EXIT_FAILED`.
    """
    if as_json:
        data = {name: value for name, value in (told.data if told is not None else {}).items() if name != "at"}
        print_json({"job": run.name, "outcome": told.kind if told is not None else "ended", **asked} | data)
    elif told is None:
        typer.echo(f"{run.name} has ended before", err=True)
    else:
        typer.echo(said, err=refused)
    if told is None:
        raise typer.Exit(EXIT_FAILED)
