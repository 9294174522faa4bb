"""The plugins that a job uses if its file names none."""

from __future__ import annotations

from collections.abc import Sequence

from rolemesh.errors import PluginError
from rolemesh.kinds.installed import entry_points
from rolemesh.kinds.offered import how_to_get
from rolemesh.plugins.discovery import OFFERED, PluginRecord

DEFAULTS = "rolemesh.defaults"
"""Entry-point group: the name is a kind, the value a plugin's name, as in ``schedulers = pack``."""


def default_plugin(kind: str, records: Sequence[PluginRecord]) -> str | None:
    """Return the name of the default plugin of `kind`, or None.

    A default counts if an installed distribution declares it and it is among the available
    `records`. If there are several, the distribution whose name sorts first wins.
    """
    declared = [p for p in entry_points() if (p.group, p.name) == (DEFAULTS, kind) and p.dist]
    declared.sort(key=lambda point: point.dist.name if point.dist else "")
    available = _available(kind, records)
    return next((point.value for point in declared if point.value in available), None)


def default_engine(records: Sequence[PluginRecord]) -> str:
    """Return the name of the default engine, or of the only available engine.

    Raises `PluginError` if there is no engine, or if none of several is the default.
    """
    available = _available("engines", records)
    if found := default_plugin("engines", records):
        return found
    if len(available) == 1:
        return available[0]
    if available:
        remedy = f"name one of them: {', '.join(available)}"
        raise PluginError("several engines are installed, and none is the default", remedy=remedy)
    remedy = how_to_get("engines") or "install a distribution that has one"
    raise PluginError("no engine is installed", kind="missing", remedy=remedy)


def _available(kind: str, records: Sequence[PluginRecord]) -> list[str]:
    return sorted({each.name for each in records if each.kind == kind and each.status in OFFERED})
