"""`rolemesh clean`: list the runs that later ones have replaced, or delete them."""

from __future__ import annotations

from typing import Annotated

import typer

from rolemesh.cli.arguments import RunsDir
from rolemesh.cli.output import print_table, print_text
from rolemesh.errors import NameInUseError
from rolemesh.runs.run import runs_folder
from rolemesh_console.text import amount
from rolemesh_runtime.earlier import clean_command, delete, earlier_runs
from rolemesh_runtime.lock import is_held

__all__ = ["command"]


def command(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="Name of one job; without it, all.", show_default=False)
    ] = None,
    keep: Annotated[
        int, typer.Option(min=0, help="Number of replaced runs of each job to keep, the newest first.")
    ] = 0,
    yes: Annotated[bool, typer.Option("--yes", help="Delete the runs instead of listing them.")] = False,
    runs_dir: RunsDir = None,
) -> None:
    """List the runs that later runs of the same name have replaced, with their sizes. With --yes, delete them.

    These runs are in .earlier in the runs folder, with their snapshots. Nothing else is deleted. Nothing is deleted
    while a job of the runs folder is running, because it may have been resumed from one of them.

    Exit code: 0, or 2 if a job is running and --yes is given.

    Examples:

      rolemesh clean

      rolemesh clean grpo --keep 1 --yes
    """
    runs = runs_folder(runs_dir)
    found = earlier_runs(runs, job, keep)
    if not found:
        print_text(f"no earlier runs to delete in {runs}/")
        return
    total = amount(sum(each.bytes for each in found))
    if not yes:
        print_table(("EARLIER RUN", "SIZE"), [(str(each.path), amount(each.bytes)) for each in found])
        print_text(f"{total} in all; to delete them: {clean_command(runs, job, keep)} --yes")
        return
    if living := sorted(path.name for path in runs.iterdir() if path.is_dir() and is_held(path)):
        what = f"{' and '.join(living)} may go on from an earlier run, so none is deleted"
        raise NameInUseError(what, where=str(runs), remedy=f"wait for its end, or: rolemesh stop {living[0]}")
    for each in found:
        delete(each)
    print_text(f"deleted {len(found)} earlier run{'s' * (len(found) > 1)}: {total}")
