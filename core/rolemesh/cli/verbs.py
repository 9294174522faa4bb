"""The verbs of the command line: the kernel's own, and those of installed commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from rolemesh.plugins.discovery import PluginRecord, discover
from rolemesh.plugins.static import attribute

if TYPE_CHECKING:
    from rolemesh.api.command import RunOption

__all__ = ["OWN", "Verb", "run_options", "verbs"]


class Verb(NamedTuple):
    """A verb: its name, a line about it, and how to get what typer makes of it for the arguments given."""

    name: str
    about: Callable[[], str]
    load: Callable[[Sequence[str]], Any]


def _own(name: str, help: str) -> Verb:
    def load_own(given: Sequence[str]) -> Any:
        module = import_module(f"rolemesh.cli.{name}")
        if hasattr(module, "verb"):
            return module.verb(given)
        return module.app if hasattr(module, "app") else module.command

    return Verb(name, lambda: help, load_own)


OWN = (
    _own("run", "Run a job."),
    _own("validate", "Check a job file, its plugins and its flow, without Ray."),
    _own("plan", "Show what would run where, without starting anything."),
    _own("plugins", "List installed plugins, or show one."),
    _own("new", "Make a repository for a plugin of your own."),
    _own("schema", "Print the JSON Schema of job files, with the options of all installed plugins."),
)


def verbs() -> dict[str, Verb]:
    """All verbs by name; one below another is ``plugins.check``."""
    found = {verb.name: verb for verb in OWN}
    for record in _installed():
        if not record.name.startswith("run."):
            found.setdefault(record.name, _of(record))
    return found


def _of(record: PluginRecord) -> Verb:
    return Verb(record.name, lambda: attribute(record, "help"), lambda given: _load(record).function())


def run_options() -> list[type[RunOption]]:
    """What adds options to ``rolemesh run``."""
    return [_load(record) for record in _installed() if record.name.startswith("run.")]


def _load(record: PluginRecord) -> Any:
    from rolemesh.plugins.drivers import load

    return load(record)


def _installed() -> list[PluginRecord]:
    return [record for record in discover(("commands",)) if record.status == "available"]
