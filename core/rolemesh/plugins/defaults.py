"""The plugin of a kind that is used if the job selects none."""

from __future__ import annotations

from collections.abc import Sequence

from rolemesh.errors import PluginError
from rolemesh.kinds.installed import entry_points
from rolemesh.plugins.discovery import PluginRecord

DEFAULTS = "rolemesh.defaults"
"""Entry-point group: the name is a kind, the value a plugin's name, as in ``engines = inline``."""
OWN = "rolemesh"


def default_plugin(kind: str, records: Sequence[PluginRecord]) -> str:
    """Return the name of the default plugin of `kind` among the available `records`.

    A default that another distribution declares takes precedence over the kernel's. Raises
    `PluginError` if none is available.
    """
    there = {each.name for each in records if each.kind == kind and each.status == "available"}
    declared = [p for p in entry_points() if (p.group, p.name) == (DEFAULTS, kind) and p.dist]
    declared.sort(key=lambda p: (p.dist.name == OWN, p.dist.name) if p.dist else (True, ""))
    for point in declared:
        if point.value in there:
            return point.value
    raise PluginError(
        f"no plugin of the kind {kind!r} is the default",
        remedy=f"name one of {', '.join(sorted(there)) or 'none that is installed'}",
    )
