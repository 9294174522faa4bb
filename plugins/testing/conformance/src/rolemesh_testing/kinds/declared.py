"""Kinds of plugins that installed distributions declare, as records like those of plugins."""

from __future__ import annotations

from rolemesh.errors import PluginError, nearest
from rolemesh.kinds import DECLARED, kind_named
from rolemesh.kinds.installed import entry_points
from rolemesh.plugins.discovery import PluginRecord

__all__ = ["KINDS", "declared", "singular"]

KINDS = DECLARED.partition(".")[2]
"""What the kit calls the kind of a declaration: its entry-point group without ``rolemesh.``."""


def declared(name: str | None = None) -> list[PluginRecord]:
    """The declarations in the entry-point group ``rolemesh.kinds``, or those that are called `name`.

    `name` may be ``distribution:name``. Raises `PluginError` if there is none of that name.
    """
    found = [
        PluginRecord(KINDS, point.name, point.dist.metadata["Name"], point.dist.metadata["Version"], point.value)
        for point in sorted(point for point in entry_points() if point.group == DECLARED)
        if point.dist is not None
    ]
    if name is None:
        return found
    if called := [record for record in found if record.is_called(name)]:
        return called
    remedy = nearest(name.rpartition(":")[2], [record.name for record in found])
    raise PluginError(f"no distribution declares a kind {name!r}", kind="missing", remedy=remedy)


def singular(kind: str) -> str:
    """What one of a kind is called in messages."""
    return "kind" if kind == KINDS else kind_named(kind).singular
