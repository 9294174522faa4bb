"""The frame of the verbs that request something from a running job: the run, the outcome, and the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from rolemesh.api.observer import Event
from rolemesh.cli.output import print_json, print_text
from rolemesh.errors import EXIT_FAILED
from rolemesh_durable.api.jobs import LivingRun, MasterGoneError, Request, Run, ask
from rolemesh_jobs.runs import find
from rolemesh_runtime.lock import is_held

__all__ = ["request", "running", "say", "tell"]


def running(job: str, runs_dir: Path | None) -> LivingRun:
    """Return a run that has not ended. Raises `MasterGoneError` if it has."""
    run = find(job, runs_dir)
    if (result := run.result()) is not None:
        raise MasterGoneError(f"{run.name} has ended already: {result.get('status')}", where=str(run.path))
    return run


def request(run: LivingRun, what: Request, *, wait: bool) -> Event | None:
    """Send a request to the job's master, or the next one, and return its outcome; None if the job ended first.

    See `rolemesh_durable.api.jobs.ask`. Raises `MasterGoneError` if the job has neither a living process nor a result.
    """
    told = False

    def silent() -> None:
        nonlocal told
        if not is_held(run.path) and run.result() is None:
            remedy = "rolemesh events shows what it journalled last"
            raise MasterGoneError(f"the master of job {run.name} is gone", where=str(run.path), remedy=remedy)
        if not told:
            say(run, "its master does not answer, but the job lives: the next one will be asked")
        told = True

    return ask(run.path, what, lambda: run.result() is not None, silent=silent, wait=wait)


def say(run: Run, text: str) -> None:
    """Print a line about the job to stderr."""
    print_text(f"{run.name}: {text}", err=True)


def tell(run: Run, told: Event | None, said: str, asked: Mapping[str, Any], *, as_json: bool, refused: bool) -> None:
    """Print the outcome of a request: as JSON with the keys of `asked`, or as the sentence `said`.

    A refusal goes to stderr. `told` is the event that answers the request, or None if the job ended first; then this
    raises `typer.Exit` with `EXIT_FAILED`.
    """
    if as_json:
        data = {name: value for name, value in (told.data if told is not None else {}).items() if name != "at"}
        print_json({"job": run.name, "outcome": told.kind if told is not None else "ended", **asked} | data)
    elif told is None:
        print_text(f"{run.name} has ended before", err=True)
    else:
        print_text(said, err=refused)
    if told is None:
        raise typer.Exit(EXIT_FAILED)
