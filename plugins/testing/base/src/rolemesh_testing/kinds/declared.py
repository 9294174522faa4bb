"""Reads the kinds that installed distributions declare, as records like those of plugins."""

from __future__ import annotations

from rolemesh.errors import PluginError, nearest
from rolemesh.kinds import DECLARED, kind_named
from rolemesh.kinds.installed import entry_points
from rolemesh.plugins.discovery import PluginRecord

__all__ = ["KINDS", "declared", "singular"]

KINDS = DECLARED.partition(".")[2]
"""The kit's name for the kind of a declaration: its entry-point group without ``rolemesh.``."""


def declared(name: str | None = None) -> list[PluginRecord]:
    """Return the declarations in the entry-point group ``rolemesh.kinds``, or only those with the name `name`.

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
    """Return the name of a plugin of the kind in messages."""
    return "kind" if kind == KINDS else kind_named(kind).singular
