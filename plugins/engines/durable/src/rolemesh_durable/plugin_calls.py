"""Create plugins of a job in this process, as the driver resolved them, and check what they answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from rolemesh.api.import_ref import import_paths
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.manager import JobPlugins, misbehaved
from rolemesh_durable.protocol.job import PluginUse
from rolemesh_durable.resolved import load_exact

__all__ = ["asked", "checked", "created", "exact"]

T = TypeVar("T")

MOST_SHOWN = 200
"""Maximum number of characters of a wrong answer in an error."""


def exact(use: PluginUse) -> type[Any]:
    """The class that the driver has resolved. Raises `PluginError` if it is another one here."""
    return load_exact(msgspec.convert(use.record, PluginRecord))


def created(uses: Iterable[PluginUse], base: str) -> JobPlugins:
    """Import and create plugins, in order, as ``name#index``; `base` is the job file's folder. Raises `PluginError`."""
    import_paths(base)
    plugins = JobPlugins()
    for index, use in enumerate(uses):
        record = msgspec.convert(use.record, PluginRecord)
        cls = load_exact(record)
        options = cls.Options.model_validate(use.options, context={"base": base})
        plugins.create(f"{record.name}#{index}", record, cls, options)
    return plugins


def asked(plugins: JobPlugins, name: str, hook: str, /, *kinds: type[T], **arguments: Any) -> T | None:
    """The answer of a hook, which is one of `kinds` or None. Raises `PluginError` for anything else."""
    return checked(plugins.record(name), f"hook {hook!r}", plugins.call(name, hook, **arguments), *kinds)


def checked(record: PluginRecord, what: str, value: Any, *kinds: type[T]) -> T | None:
    """The answer of a plugin's `what`, which is one of `kinds` or None. Raises `PluginError` for anything else."""
    if value is None:
        return None
    try:
        if not isinstance(value, kinds):
            names = " or ".join([*(kind.__name__ for kind in kinds), "None"])
            raise msgspec.ValidationError(f"expected {names}, got {type(value).__name__}")
        return msgspec.convert(msgspec.to_builtins(value), type(value))
    except (msgspec.ValidationError, TypeError) as error:
        shown = repr(value)
        shown = shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]} …"
        raise misbehaved(record, f"answered {shown} from its {what}: {error}") from error
