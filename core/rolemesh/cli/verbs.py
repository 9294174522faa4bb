"""The verbs of the command line: the kernel's own, and those of installed commands."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from rolemesh.plugins.discovery import OFFERED, PluginRecord, discover, find
from rolemesh.plugins.static import attribute

OWN = {
    "run": "Run a job.",
    "validate": "Check a job file, its plugins and its flow.",
    "plan": "Show what would run where, without starting anything.",
    "plugins": "List installed plugins, show, check or lock them.",
}
"""The kernel's own verbs, with one line each."""


class Verb(NamedTuple):
    """A verb of the kernel or of an installed command."""

    name: str
    record: PluginRecord | None = None

    def about(self) -> str:
        """The line for the list of verbs."""
        return OWN[self.name] if self.record is None else attribute(self.record, "help")

    def group(self) -> str | None:
        """The part of the list of verbs; None for the rest of it."""
        return attribute(self.record, "group") or None if self.record else "Prepare and start jobs"

    def load(self, given: Sequence[str]) -> Any:
        """Return the verb for typer, for the arguments given."""
        if self.record is not None:
            from rolemesh.plugins.drivers import load

            clash = self.record.status == "duplicate" and discover(("commands",))
            return load(find("commands", self.name, clash or (self.record,))).function()
        module = import_module(f"rolemesh.cli.{self.name}")
        return module.verb(given) if hasattr(module, "verb") else module.command


def verbs() -> dict[str, Verb]:
    """Return all verbs by name; a verb below another one is written ``plugins.check``."""
    found = {name: Verb(name) for name in OWN}
    for record in discover(("commands",)):
        if record.status in OFFERED and not record.name.startswith(("run.", "plan.")):
            found.setdefault(record.name, Verb(record.name, record))
    return found
