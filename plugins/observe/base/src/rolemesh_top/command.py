"""``rolemesh top``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from rolemesh.api.command import Command
from rolemesh.cli.arguments import JsonFlag, RunsDir
from rolemesh.cli.output import print_text
from rolemesh.errors import RolemeshError
from rolemesh.runs.run import runs_folder

__all__ = ["TopVerb"]


class TopVerb(Command):
    """`rolemesh top`."""

    help: ClassVar[str] = "Show what the ranks of a job do, in the terminal."
    group: ClassVar[str] = "Look at jobs"

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the verb."""
        return top


def top(
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB|FOLDER]", help="The job, or its run's folder.", show_default="the latest run"),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame as text, and end, as in a pipe.")] = False,
    as_json: JsonFlag = False,
    window: Annotated[
        float, typer.Option("--window", "-w", min=1.0, help="Seconds that shares are about.", metavar="SECONDS")
    ] = 60.0,
    every: Annotated[
        float, typer.Option("--every", min=0.2, help="Seconds between two frames.", metavar="SECONDS")
    ] = 2.0,
    runs_dir: RunsDir = None,
) -> None:
    """Show the ranks of a job, its edges, its critical path and its events, until q.

    It works on a running job, an ended one, a killed one, and a copied folder. It reads the run's folder and the
    master's status; the job does not wait for it. Below the job it names those of the runs folder that wait for room.

    Exit code: 0, 2 if there is no such run.

    Examples:

      rolemesh top

      rolemesh top grpo --once

      rolemesh top grpo --json | jq '.ranks[] | select(.restarts > 0)'
    """
    from rolemesh_facts.finding import readable_run
    from rolemesh_facts.waiting import answered
    from rolemesh_top.frame import FrameSource

    folder = runs_folder(runs_dir)
    path = readable_run(job or _latest(folder), folder)
    source = FrameSource(path)
    if as_json:
        import msgspec

        print_text(
            msgspec.json.format(msgspec.json.encode(answered(path, lambda: source.frame(window))), indent=2).decode()
        )
    elif once or not sys.stdout.isatty():
        from rich.console import Console

        from rolemesh_top.text import printed

        console = Console(highlight=False)
        console.print(printed(answered(path, lambda: source.frame(window)), console.width))
    else:
        from rolemesh_top.app import TopApp

        TopApp(source, window, every).run()


def _latest(folder: Path) -> str:
    """Return the latest run's folder; without a run, the name of a job that waits for room."""
    from rolemesh_durable.api.jobs import list_runs
    from rolemesh_runtime.waiting import waiting_jobs

    found = [str(run.path) for run in list_runs(folder)] or [each.job for each in waiting_jobs(folder)]
    if not found:
        remedy = "start a job with 'rolemesh run', or name the folder of a run"
        raise RolemeshError("there is no run", where=str(folder), remedy=remedy)
    return found[0]
