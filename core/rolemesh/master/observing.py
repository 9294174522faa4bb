"""The observers that live beside the master, made from what the driver resolved."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rolemesh.imports import import_paths
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.drivers import load_exact
from rolemesh.plugins.manager import JobPlugins
from rolemesh.protocol.job import PluginUse

__all__ = ["observers_of"]


def observers_of(uses: Iterable[PluginUse], base: str) -> JobPlugins:
    """Import and create the observers; `base` is the job file's folder. Raises `PluginError`."""
    import_paths(base)
    plugins = JobPlugins()
    for index, use in enumerate(uses):
        record = msgspec.convert(use.record, PluginRecord)
        cls = load_exact(record)
        options = cls.Options.model_validate(use.options, context={"base": base})
        plugins.create(f"{record.name}#{index}", record, cls, options)
    return plugins
