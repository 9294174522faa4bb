"""The command line: a table of verbs, one file each. Only the verb that was typed is imported."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import typer

from rolemesh.cli._output import print_error
from rolemesh.errors import EXIT_INTERRUPTED, RolemeshError

__all__ = ["VERBS", "Verb", "main"]


class Verb(NamedTuple):
    """A verb of the command line: `rolemesh.cli.<module>` has it as ``command`` (or as ``app``, with verbs below)."""

    name: str
    module: str
    help: str


VERBS = (
    Verb("run", "run", "Run a job."),
    Verb("validate", "validate", "Check a job file, its plugins and its flow, without Ray."),
    Verb("plan", "plan", "Show what would run where, without starting anything."),
    Verb("status", "status", "Show jobs: master, agents and ranks."),
    Verb("attach", "attach", "Show the live view of a running job."),
    Verb("logs", "logs", "Print the logs of a job's ranks."),
    Verb("events", "events", "Print the journal of a job."),
    Verb("stop", "stop", "Stop a job."),
    Verb("checkpoint", "checkpoint", "List, verify or export the snapshots of a run on disk."),
    Verb("plugins", "plugins", "List installed plugins, or show one."),
    Verb("new", "new", "Make a repository for a plugin of your own."),
    Verb("schema", "schema", "Print the JSON Schema of job files, with the options of all installed plugins."),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 0 done, 1 failed, 2 not started, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        typer.main.get_command(_app(given)).main(given, prog_name="rolemesh")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except RolemeshError as error:
        print_error(error)
        return error.exit_code
    except BrokenPipeError:
        # Python would flush stdout once more at exit and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _app(given: Sequence[str]) -> typer.Typer:
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="The control plane for AI jobs made of many roles.",
    )
    typed = next((argument for argument in given if not argument.startswith("-")), None)
    for verb in VERBS:
        if find_spec(f"rolemesh.cli.{verb.module}") is None:
            continue
        if verb.name != typed:
            app.command(verb.name, help=verb.help)(_not_typed)
            continue
        module = import_module(f"rolemesh.cli.{verb.module}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=verb.name, help=verb.help)
        else:
            command: Callable[..., Any] = module.command
            app.command(verb.name, help=inspect.getdoc(command) or verb.help)(command)
    app.callback()(_root)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        import rolemesh

        typer.echo(rolemesh.__version__)
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
    ),
) -> None:
    """Stands before every verb: `rolemesh --version`."""


def _not_typed() -> None:
    """Stands for a verb in the list of verbs; the verb that was typed is always the real one."""
    raise AssertionError("unreachable: the verb that was typed is imported")
