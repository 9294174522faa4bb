"""The verb: lists the runs' folders by size. Nothing of it is imported until somebody types it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from rolemesh.api.command import Command

__all__ = ["{{ cookiecutter.__class }}"]


class {{ cookiecutter.__class }}(Command):
    """`rolemesh {{ cookiecutter.name }}`."""

    help: ClassVar[str] = "List how large the folders of runs are."

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """The verb."""
        return list_sizes


def list_sizes(
    runs_dir: Annotated[
        Path, typer.Option(help="Where the runs' folders are.", envvar="ROLEMESH_RUNS", show_default="./runs")
    ] = Path("runs"),
    least_mb: Annotated[float, typer.Option(help="Leave smaller ones out, in 10^6 bytes.", min=0)] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")] = False,
) -> None:
    """List how large the folders of runs are, the largest first.

    Exit code: 0, also if there are none.
    """
    found = {name: mb for name, mb in sizes(runs_dir).items() if mb >= least_mb}
    if as_json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{mb:10.1f} MB  {name}" for name, mb in found.items()) or f"no runs in {runs_dir}")


def sizes(runs: Path) -> dict[str, float]:
    """The sizes of the folders in `runs` by name, in 10^6 bytes, the largest first."""
    folders = [path for path in runs.iterdir() if path.is_dir()] if runs.is_dir() else []
    found = {path.name: sum(file.lstat().st_size for file in path.rglob("*") if file.is_file()) for path in folders}
    return {name: size / 1e6 for name, size in sorted(found.items(), key=lambda item: (-item[1], item[0]))}
