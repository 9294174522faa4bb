"""Arguments that several verbs share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel

    from rolemesh.api.command import Command

C = TypeVar("C", bound="Command")
JobArgument = Annotated[Path, typer.Argument(help="The job file.", show_default=False)]
_SET = "Values to set: KEY=TEXT (steps=5), or KEY:=YAML."
Overrides = Annotated[list[str] | None, typer.Argument(help=_SET, show_default=False)]
_JOB = "Name of the job (a folder in the runs folder)."
JobName = Annotated[str, typer.Argument(metavar="JOB", help=_JOB, show_default=False)]
_JSON = "Print JSON for programs instead of a table for people."
JsonFlag = Annotated[bool, typer.Option("--json", help=_JSON)]
_RUNS = {"help": "Where the runs' folders are.", "envvar": "ROLEMESH_RUNS"}
RunsDir = Annotated[Path | None, typer.Option(**_RUNS, show_default="./runs")]


def with_options(
    do: Callable[..., None], fixed: Callable[..., None], models: Sequence[type[BaseModel]]
) -> Any:
    """Return a verb with the arguments and docstring of `fixed`, and the fields of `models` as
    options. `do` gets all values."""

    def command(**values: Any) -> None:
        do(**values)

    own = inspect.signature(fixed, eval_str=True).parameters.values()
    parameters = [*own, *(option for model in models for option in _parameters(model))]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = fixed.__doc__
    return command


def chosen(options: Sequence[type[C]], values: Mapping[str, Any]) -> list[C]:
    """Return an instance of each options class, with those of the `values` that belong to it."""
    return [
        cls(cls.Options(**{name: values[name] for name in cls.Options.model_fields}))
        for cls in options
    ]


def _parameters(options: type[BaseModel]) -> Iterator[inspect.Parameter]:
    """Return the fields of a model as options of a command."""
    for name, field in options.model_fields.items():
        if not field.exclude:
            extra: Any = field.json_schema_extra
            metavar = extra.get("metavar") if isinstance(extra, dict) else None
            # Spelled out, a switch has no --no- counterpart.
            option = typer.Option(
                f"--{name.replace('_', '-')}", help=field.description, metavar=metavar
            )
            typed: Any = Annotated[field.annotation, option]
            keyword = inspect.Parameter.KEYWORD_ONLY
            yield inspect.Parameter(name, keyword, default=field.get_default(), annotation=typed)
