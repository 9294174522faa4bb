"""The plugins that the job of a workload under test lists under ``plugins``, for `ctx.plugins`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rolemesh.api.import_ref import ImportRef
from rolemesh.plugins.discovery import discover, resolve
from rolemesh.plugins.drivers import load

__all__ = ["Listed", "listed", "made"]


class Listed(msgspec.Struct, frozen=True):
    """A plugin that another process can make. `name` is that of `ctx.plugins`: ``files#2`` for the second of two."""

    kind: str
    name: str
    target: str
    options: dict[str, Any]


def listed(plugins: Mapping[str, Sequence[Mapping[str, Any]]], base: Path) -> tuple[Listed, ...]:
    """Return the plugins that a job file in the folder `base` lists. Raises `PluginError` for an unknown one."""
    found = []
    for kind, uses in plugins.items():
        records = [resolve(kind, use["use"], discover((kind,)), base) for use in uses]
        names = [record.name for record in records]
        for at, (use, record) in enumerate(zip(uses, records, strict=True)):
            number = f"#{names[: at + 1].count(names[at])}" if names.count(names[at]) > 1 else ""
            load(record)
            found.append(Listed(kind, names[at] + number, record.target, dict(use.get("options", {}))))
    return tuple(found)


def made(plugin: Listed, base: str) -> Any:
    """Make the plugin."""
    cls = _class(plugin)
    return cls(cls.Options.model_validate(plugin.options, context={"base": base}))


def _class(plugin: Listed) -> Any:
    return ImportRef(plugin.target).resolve()
