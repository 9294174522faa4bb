"""Arguments that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JobArgument = Annotated[Path, typer.Argument(help="The job file.", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Values to set, e.g. steps=5 roles.trainer.world_size=4.", show_default=False)
]
JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="Name of the job (a folder in the runs folder).", show_default=False)
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table for people.")]
RunsDir = Annotated[
    Path | None, typer.Option(help="Where the runs' folders are.", envvar="ROLEMESH_RUNS", show_default="./runs")
]
