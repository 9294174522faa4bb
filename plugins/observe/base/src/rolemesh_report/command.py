"""``rolemesh report``, and the report that ``rolemesh run`` makes at the end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from pydantic import BaseModel, Field

from rolemesh.api.command import Command, RunOption
from rolemesh.cli.arguments import RunsDir
from rolemesh.cli.output import print_text
from rolemesh.errors import RolemeshError
from rolemesh.runs.run import JOB_FILE, runs_folder

__all__ = ["ReportAtEnd", "ReportVerb"]


class ReportVerb(Command):
    """`rolemesh report`."""

    help: ClassVar[str] = "Write one HTML file about a run."
    group: ClassVar[str] = "Look at jobs"

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the verb."""
        return report


def report(
    job: Annotated[
        str, typer.Argument(metavar="JOB|FOLDER", help="Name of the job, or its run's folder.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The file.", metavar="FILE", show_default="report.html in the folder"),
    ] = None,
    per_gpu_hour: Annotated[
        float, typer.Option("--gpu-hour-price", help="Price in any currency; 0: none.", metavar="PRICE")
    ] = 0.0,
    runs_dir: RunsDir = None,
) -> None:
    """Write one HTML file about a run: flow, time, critical path, cost, metrics, failures, placement.

    It reads only the run's folder, so the job may run, have ended, or have been killed. The file needs no network.

    Exit code: 0, 2 if there is no such run, its store does not answer, or the file cannot be written.

    Examples:

      rolemesh report grpo

      rolemesh report /backup/grpo -o grpo.html
    """
    from rolemesh_facts.finding import readable_run
    from rolemesh_facts.waiting import answered
    from rolemesh_report.writing import REPORT_FILE, write_report

    folder = readable_run(job, runs_folder(runs_dir))
    path = output or folder / REPORT_FILE
    if output is None and folder.stat().st_uid != os.geteuid():
        what, remedy = "the run is another user's, so nothing is written there", "name the file: -o FILE"
        raise RolemeshError(what, where=str(folder), remedy=remedy)
    try:
        answered(folder, lambda: write_report(folder, path, per_gpu_hour=per_gpu_hour))
    except OSError as error:
        remedy = "choose another place: -o FILE"
        raise RolemeshError(
            f"the report cannot be written: {error.strerror or error}", where=str(path), remedy=remedy
        ) from error
    print_text(str(path))


class ReportOptions(BaseModel, extra="forbid"):
    """Options of ``rolemesh run``."""

    no_report: bool = Field(default=False, description="Do not write report.html at the end.")


class ReportAtEnd(RunOption):
    """Writes the report into the run's folder, in the driver's process, when the job is over."""

    Options: ClassVar[type[BaseModel]] = ReportOptions
    help: ClassVar[str] = "Write a report at the end."

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._made = time.time()

    def wanted(self) -> bool:
        """False: the job runs as usual."""
        return False

    def ended(self, run: Any) -> None:
        """Write the report, and say where it is. Its failure is a warning.

        A run that was refused has none: the folder of its name belongs to another run, or to somebody else.
        """
        from rolemesh_facts.waiting import answered
        from rolemesh_report.writing import REPORT_FILE, write_report

        refused = sys.exc_info()[1] is not None and not _written_since(run.run_dir / JOB_FILE, self._made)
        if self.options.no_report or run.detached or refused or not run.run_dir.is_dir():
            return
        path = run.run_dir / REPORT_FILE
        try:
            answered(run.run_dir, lambda: write_report(run.run_dir, path))
        except Exception as error:
            print(f"warning: the report cannot be written: {type(error).__name__}: {error}", file=sys.stderr)
        else:
            seen = os.path.relpath(path)
            print(f"report: {path if seen.startswith(os.pardir) else seen}", file=sys.stderr)


def _written_since(path: Path, then: float) -> bool:
    """Return whether the file is there and not older than `then`. File systems round times down."""
    try:
        return path.stat().st_mtime >= int(then)
    except OSError:
        return False
