"""``rolemesh plugins check``: the conformance kit against an installed plugin, from the command line."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import typer

from rolemesh.api.command import Command
from rolemesh.cli._output import print_json
from rolemesh.cli.arguments import JsonFlag
from rolemesh.cli.plugins import KindOption, named
from rolemesh.errors import EXIT_FAILED
from rolemesh.kinds import kind_named
from rolemesh.plugins.discovery import discover
from rolemesh_testing.check import Certificate, check_folder, check_plugin

__all__ = ["Check", "check"]

OUTCOMES = ("passed", "failed", "overridden", "skipped")


class Check(Command):
    """`rolemesh plugins check`."""

    help: ClassVar[str] = "Run the conformance kit against a plugin."

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """The verb."""
        return check


def check(
    plugin: Annotated[str, typer.Argument(help="An installed plugin's name, or a plugin's folder or test file.")],
    kind: KindOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Run the conformance kit against a plugin, in a process of its own, and print what it passes.

    For a name, the kit's class is the one that the plugin's distribution names in the entry-point group
    rolemesh.conformance, or that in the tests of the folder it is installed from (pip install -e). Exit code 0: nothing
    failed; 1: something did; 2: it could not be tested. Needs rolemesh's extra `test`.
    """
    path = Path(plugin)
    if path.exists() and (os.sep in plugin or path.suffix == ".py" or (path / "pyproject.toml").exists()):
        certificates = check_folder(path, discover(), _print_progress)
    else:
        certificates = [one for record in named(plugin, kind) for one in check_plugin(record, _print_progress)]
    _print_progress("")
    if as_json:
        print_json([msgspec.to_builtins(one) | {"passed": one.passed} for one in certificates])
    else:
        print("\n\n".join(_certificate(one) for one in certificates))
    if not all(one.passed for one in certificates):
        raise typer.Exit(EXIT_FAILED)


def _certificate(one: Certificate) -> str:
    where = f"{one.distribution} {one.version}" if one.distribution else "not installed"
    fits = f"rolemesh{one.requires}" if one.requires else "any rolemesh"
    seconds = sum(test.seconds for test in one.tests)
    counts = [f"{n} {outcome}" for outcome in OUTCOMES if (n := one.count(outcome))]
    skipped = one.count("skipped") if one.bare else 0
    head = f"{'✔' if one.passed else '✘'} {kind_named(one.kind).singular} {one.name}  ({where})"
    lines = [
        f"{head}: {skipped} tests need its conformance class, and have not been run" if skipped else head,
        f"  fits {fits}; this is rolemesh {one.kernel}{'' if one.fits else ', which it does not fit'}",
        f"  {', '.join(counts)} in {seconds:.1f} s",
    ]
    for outcome in OUTCOMES[1:]:
        for test in (test for test in one.tests if test.outcome == outcome):
            lines.append(f"  {outcome:<10}  {test.test}")
            lines += [f"              {line}" for line in (test.reason or test.message).splitlines()]
    return "\n".join(line.rstrip() for line in lines)


def _print_progress(text: str) -> None:
    """A line on stderr that the next one replaces, for a person who waits; "" removes it. Nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
