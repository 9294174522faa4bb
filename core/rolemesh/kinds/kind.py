"""What a kind of plugin is."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal, TypeAlias

import msgspec

__all__ = ["Kind", "Place"]

Place: TypeAlias = Literal["command line", "driver", "master", "agent", "rank"]
"""A process of a job, or the one that a person has started."""


class Kind(msgspec.Struct, frozen=True):
    """A kind of plugin: how it is found, what its classes are, and where they run.

    Plugins of the kind `name` are the entry points of the group ``rolemesh.<name>``. A distribution declares a kind of
    its own with an entry point of the group ``rolemesh.kinds`` that names such a record.
    """

    name: str
    singular: str
    """What one of them is called in messages."""
    base: str
    """The class that they derive from, as ``module:Class``; its `api_version` is the newest that is understood."""
    runs_in: tuple[Place, ...]
    hooks: tuple[str, ...] = ()
    """Hooks of `rolemesh.hookspecs` that plugins of the kind may implement."""
    required: tuple[str, ...] = ()
    """Hooks that they must implement."""
    job_key: str = ""
    """The key of the job file under which a list of them stands; "" if they are selected otherwise."""
    conformance: str = ""
    """The conformance class that checks them, as ``module:Class``."""
    known: dict[str, str] = {}
    """Plugins that need not be installed, and the distributions that offer them: for messages."""

    @property
    def group(self) -> str:
        """The entry-point group."""
        return f"rolemesh.{self.name}"

    def base_class(self) -> type[Any]:
        """The class that plugins of the kind derive from."""
        module, _, name = self.base.partition(":")
        found: type[Any] = getattr(import_module(module), name)
        return found
