"""`rolemesh scale`: change the number of ranks of a running job's roles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from rolemesh.api.observer import Event
from rolemesh.cli.arguments import JobName, JsonFlag, RunsDir
from rolemesh.errors import EXIT_NOT_STARTED, JobFileError
from rolemesh_console.sentences import sentence
from rolemesh_durable.api.jobs import ResizeRequest, Run
from rolemesh_jobs.asking import request, running, tell
from rolemesh_jobs.runs import reason

__all__ = ["command"]

Sizes = Annotated[list[str], typer.Argument(metavar="ROLE=N", help="The new number of ranks of each role.")]


def command(
    job: JobName,
    sizes: Sizes,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Return when it is done, or as soon as it is accepted.")
    ] = True,
    as_json: JsonFlag = False,
    runs_dir: RunsDir = None,
) -> None:
    """Change the number of ranks of roles of a running job, without ending it.

    All ranks stop after the same step, some seconds ahead, and write a checkpoint of it. The ranks of these roles then
    start from it in their new number and divide the old ranks' state and values among them. All other ranks keep their
    processes and continue.

    Exit code: 0 when the roles have the new number of ranks (with --no-wait: when the request is accepted); 2 if they
    cannot have it (no such job or role, outside of min and max, no room, state that cannot be divided), and the job
    continues unchanged; 1 if the job ended first or its master was lost.

    Examples:

      rolemesh scale grpo rollout=4

      rolemesh scale grpo rollout=2 reward=1 --json
    """
    wanted = _parsed(sizes)
    run = running(job, runs_dir)
    told = request(run, ResizeRequest(wanted, reason("scale")), wait=wait)
    refused = told is not None and told.kind == "resize_refused"
    said = _said(run, told, wanted) if told is not None else ""
    tell(run, told, said, {"sizes": wanted}, as_json=as_json, refused=refused)
    if refused:
        raise typer.Exit(EXIT_NOT_STARTED)


def _parsed(sizes: list[str]) -> dict[str, int]:
    wanted: dict[str, int] = {}
    for each in sizes:
        role, equals, number = each.partition("=")
        if not (role and equals and number.isdigit()):
            raise JobFileError(f"{each!r} is no role and its number of ranks", remedy="write it as in rollout=4")
        wanted[role] = int(number)
    return wanted


def _said(run: Run, told: Event, wanted: Mapping[str, int]) -> str:
    match told.kind:
        case "resize_asked":
            return f"{run.name} is being resized; 'rolemesh events {run.name}' shows when that is done"
        case "had":
            return f"{run.name} has that already: " + ", ".join(f"{role} {size}" for role, size in wanted.items())
    return f"{run.name}: {sentence(told)}"
