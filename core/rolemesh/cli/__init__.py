"""The command line: a table of verbs, one file each. Only the typed verb is imported."""

from __future__ import annotations

import errno
import inspect
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import rolemesh
from rolemesh.cli.output import prepare_streams, print_error
from rolemesh.cli.verbs import verbs
from rolemesh.errors import EXIT_INTERRUPTED, EXIT_NOT_STARTED, RolemeshError
from rolemesh.kinds.installed import leftovers
from rolemesh.kinds.offered import how_to_get

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)
"""Errors of a write to stdout."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 0 done, 1 failed, 2 not started, 130
    interrupted."""
    prepare_streams()
    warnings.formatwarning = lambda message, *_: f"warning: {message}\n"
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()  # at exit, Python would only complain
        return code
    except OSError as error:
        if error.errno not in UNWRITABLE or error.filename is not None:
            raise
        # Python would flush stdout once more at exit and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno != errno.EPIPE:
            what = f"the output cannot be written: {error.strerror}"
            print_error(RolemeshError(what, remedy="write it to a place that has room"))
        return 1


def _run(given: Sequence[str]) -> int:
    try:
        typer.main.get_command(_app(given)).main(given, prog_name="rolemesh")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code == EXIT_NOT_STARTED and (typed := _typed(given)) not in verbs():
            if install := how_to_get("commands", typed):
                print(f"The verb {typed!r} is not installed: {install}", file=sys.stderr)
            for left in leftovers():
                print(f"warning: {left}", file=sys.stderr)
        return code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except RolemeshError as error:
        print_error(error)
        return error.exit_code
    return 0


def _typed(given: Sequence[str]) -> str:
    """Return the verb in the arguments `given`, "" if there is none."""
    return next((argument for argument in given if not argument.startswith("-")), "")


def _app(given: Sequence[str]) -> typer.Typer:
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="The control plane for AI jobs made of many roles.",
    )
    typed = _typed(given)
    groups = {"": app}
    for name, verb in verbs().items():
        group, _, last = name.rpartition(".")
        if group not in groups:
            continue
        found = verb.load(given) if (last in given if group else name == typed) else _not_typed
        shown: Any = {"help": verb.about(), "rich_help_panel": verb.group()}
        if isinstance(found, typer.Typer):
            groups[group].add_typer(found, name=last, **shown)
            groups[name] = found
        else:
            shown |= {"help": inspect.getdoc(found) or verb.about()}
            shown |= {"context_settings": getattr(found, "context_settings", None)}
            groups[group].command(last, **shown)(found)
    app.callback()(_root)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(rolemesh.__version__)
        raise typer.Exit


_VERSION = typer.Option("--version", help="Print it.", is_eager=True, callback=_print_version)


def _root(version: Annotated[bool, _VERSION] = False) -> None:
    """Define the options before every verb: `rolemesh --version`."""


def _not_typed() -> None:
    # Stands for a verb in the list of verbs; the verb that was typed is always the real one.
    raise AssertionError("unreachable: the verb that was typed is imported")
