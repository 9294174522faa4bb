"""``rolemesh plugins check``: the conformance kit against an installed plugin, from the command line."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import typer

from rolemesh.api.command import Command
from rolemesh.api.import_ref import find_module
from rolemesh.cli.arguments import JsonFlag
from rolemesh.cli.output import print_json
from rolemesh.cli.plugins import named
from rolemesh.errors import EXIT_FAILED
from rolemesh.kinds import kind_names
from rolemesh.plugins.discovery import PluginRecord, discover
from rolemesh_testing.check import Certificate, check_class, check_folder, check_plugin
from rolemesh_testing.kinds.declared import KINDS, declared, singular

__all__ = ["Check", "check"]

OUTCOMES = ("passed", "failed", "overridden", "skipped")
MOST_NAMES = 6
"""Maximum number of tests that the certificate lists for one reason. For more tests it prints their number."""
QUIET_S = 30.0
"""Seconds between two lines of progress where stderr is not a terminal."""
GIVEN = "the test class"
"""Beginning of the reason of a skipped test that runs once the test class sets an attribute."""


class Check(Command):
    """The verb ``rolemesh plugins check``."""

    help: ClassVar[str] = "Run the conformance kit against a plugin."

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the verb."""
        return check


def check(
    plugin: Annotated[
        str,
        typer.Argument(help="A plugin's or declared kind's name, a plugin's folder or test file, or file.py:Class."),
    ],
    kind: Annotated[str | None, typer.Option(help=f"One of {', '.join((*kind_names(), KINDS))}.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run the conformance kit against a plugin, in a process of its own, and print what it passes.

    For a name, the kit's class is the one that the plugin's distribution names in the entry-point group
    rolemesh.conformance, or that in the tests of the folder it is installed from (pip install -e). Exit code 0: nothing
    failed; 1: something did; 2: it could not be tested. Needs rolemesh's extra `test`.

    file.py:Class, or module:Class, is a class of a job's own. It is tested with the class of its kind, which is that of
    its base class unless --kind says another.
    """
    path, progress = Path(plugin), _Progress()
    if path.exists() and (os.sep in plugin or path.suffix == ".py" or not _is_installed(plugin)):
        certificates = check_folder(path, discover(), progress)
    elif _is_class(plugin):
        certificates = check_class(plugin, kind, progress)
    else:
        certificates = [one for record in _named(plugin, kind) for one in check_plugin(record, progress)]
    progress.end()
    if as_json:
        print_json([msgspec.to_builtins(one) | {"passed": one.passed} for one in certificates])
    else:
        print("\n\n".join(_certificate(one) for one in certificates))
    if not all(one.passed for one in certificates):
        raise typer.Exit(EXIT_FAILED)


def _named(name: str, kind: str | None) -> list[PluginRecord]:
    """Return the installed plugins and the declarations of kinds that `name` means. Raises `PluginError` if there is
    none.
    """
    if kind == KINDS:
        return declared(name)
    kinds = [record for record in declared() if kind is None and record.is_called(name)]
    return [*kinds, *(named(name, kind) if not kinds else (r for r in discover() if r.is_called(name)))]


def _certificate(one: Certificate) -> str:
    where = f"{one.distribution} {one.version}" if one.distribution else "not installed"
    fits = f"rolemesh{one.requires}" if one.requires else "any rolemesh"
    seconds = sum(test.seconds for test in one.tests)
    counts = [f"{n} {outcome}" for outcome in OUTCOMES if (n := one.count(outcome))]
    unasked = sum(test.outcome == "skipped" and GIVEN in test.message for test in one.tests) if one.bare else 0
    head = f"{'✔' if one.passed else '✘'} {singular(one.kind)} {one.name}  ({where})"
    lines = [
        f"{head}: {_tests(unasked)} its conformance class, and {'has' if unasked == 1 else 'have'} not been run"
        if unasked
        else head,
        f"  fits {fits}; this is rolemesh {one.kernel}{'' if one.fits else ', which it does not fit'}",
        f"  {', '.join(counts)} in {seconds:.1f} s",
    ]
    for outcome in OUTCOMES[1:]:
        told: dict[str, list[str]] = {}
        for test in (test for test in one.tests if test.outcome == outcome):
            told.setdefault(test.reason or test.message, []).append(test.test)
        for reason, names in told.items():
            # What keeps many tests from running is said once; --json has their names.
            shown = names if len(names) <= MOST_NAMES else [f"{len(names)} tests"]
            lines += [f"  {outcome:<10}  {name}" for name in shown]
            lines += [f"              {line}" for line in reason.splitlines()]
    return "\n".join(line.rstrip() for line in lines)


def _is_class(plugin: str) -> bool:
    """True if the text is ``file.py:Class`` or ``module:Class``, and not an installed ``distribution:name``."""
    module, _, name = plugin.rpartition(":")
    if not module or not name or _is_installed(plugin):
        return False
    return module.endswith(".py") or find_module(module) is not None


def _is_installed(name: str) -> bool:
    return any(record.is_called(name) for record in (*discover(), *declared()))


def _tests(count: int) -> str:
    return "1 test needs" if count == 1 else f"{count} tests need"


class _Progress:
    """Shows the test that has ended on stderr: on a line of a terminal, else in a line every `QUIET_S` seconds."""

    def __init__(self) -> None:
        self._tests, self._told = 0, time.monotonic()

    def __call__(self, test: str) -> None:
        self._tests += 1
        if sys.stderr.isatty():
            self._print(test)
        elif time.monotonic() > self._told + QUIET_S:
            self._told = time.monotonic()
            print(f"{self._tests} tests have ended, the last one is {test}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Remove the line from a terminal."""
        if sys.stderr.isatty():
            self._print("")

    def _print(self, text: str) -> None:
        print(f"\r\033[K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
