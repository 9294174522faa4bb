"""The kinds of plugins: the kernel's own, and those that installed distributions declare."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import msgspec

from rolemesh.errors import PluginError, nearest
from rolemesh.kinds.installed import entry_points, how_to_install
from rolemesh.kinds.offered import offered

DECLARED = "rolemesh.kinds"
"""The entry-point group of kinds."""

log = logging.getLogger("rolemesh.plugins")
ProcessName: TypeAlias = Literal["command line", "driver", "master", "agent", "rank"]
"""A process of a job, or the process that the user started."""


class Kind(msgspec.Struct, frozen=True):
    """A kind of plugin: how its plugins are found, the class that they derive from, and where they
    run.

    Plugins of the kind `name` are the entry points of the group ``rolemesh.<name>``. A distribution
    declares a kind of its own with an entry point of the group ``rolemesh.kinds`` that names such a
    record.
    """

    name: str
    """Last part of the name of the entry-point group."""
    singular: str
    """The word for one such plugin in messages."""
    base: str
    """The base class, as ``module:Class``. Its `api_version` is the newest version that this
    distribution supports."""
    runs_in: tuple[ProcessName, ...]
    """Processes that import plugins of the kind: one or more of the names in `ProcessName`."""
    hooks: tuple[str, ...] = ()
    """Hooks of `rolemesh.hookspecs` that plugins of the kind may implement."""
    required: tuple[str, ...] = ()
    """Hooks that plugins of the kind must implement."""
    job_key: str = ""
    """For the kernel's kinds: the key of the job file that lists such plugins; "" if they are
    selected in another way."""
    listed: bool = True
    """For declared kinds: whether job files list such plugins under ``plugins.<name>``."""
    conformance: str = ""
    """The conformance class that checks such plugins, as ``module:Class``."""

    @property
    def group(self) -> str:
        """The entry-point group."""
        return f"rolemesh.{self.name}"

    @property
    def key(self) -> str:
        """The key of the job file that lists such plugins; "" if they are selected otherwise."""
        own = f"plugins.{self.name}" if self.listed and self.name not in KERNEL else ""
        return self.job_key or own

    def base_class(self) -> type[Any]:
        """Import and return the base class."""
        module, _, name = self.base.partition(":")
        found: type[Any] = getattr(import_module(module), name)
        return found


def _own(name: str, singular: str, base: str, *runs_in: ProcessName, **more: Any) -> Kind:
    """Return a kind of the kernel. The conformance kit has a class for it, whose name derives from
    the base class."""
    kit = f"rolemesh_testing:{base.partition(':')[2].removesuffix('Level')}Conformance"
    return Kind(name, singular, f"rolemesh.{base}", runs_in, conformance=kit, **more)


_PLACES = {"job_key": "placement", "hooks": ("place", "replace"), "required": ("place",)}
_RECOVERS = {"job_key": "failover", "hooks": ("diagnose", "recover"), "required": ("recover",)}
_JUDGES = {"job_key": "diagnosers", "hooks": ("diagnose",), "required": ("diagnose",)}
_TOLD = ("committed", "persisted", "drain", "offload", "onload")
_LIVES = ("setup", "restore", "snapshot", *_TOLD, "teardown")
_WATCHES = ("job_started", "event", "steps_finished", "status", "missed", "job_ended")
_OBSERVES = {"job_key": "observers", "hooks": _WATCHES}

BUILTIN = (
    _own("workloads", "workload", "api.workload:Workload", "rank", hooks=_LIVES),
    _own("schedulers", "scheduler", "api.scheduler:Scheduler", "driver", "master", **_PLACES),
    _own("failover", "failover level", "api.failover:FailoverLevel", "master", **_RECOVERS),
    _own("diagnosers", "diagnoser", "api.diagnoser:Diagnoser", "master", **_JUDGES),
    _own("observers", "observer", "api.observer:Observer", "driver", "master", **_OBSERVES),
    _own("engines", "engine", "job.engine:Engine", "driver"),
    _own("commands", "command", "api.command:Command", "command line"),
)
KERNEL = MappingProxyType({kind.name: kind for kind in BUILTIN})
"""The kernel's own kinds by name."""


def kind_names() -> tuple[str, ...]:
    """Return the names of all kinds, the kernel's first. No declaring distribution is imported."""
    declared = {point.name for point in entry_points() if point.group == DECLARED}
    return (*KERNEL, *sorted(declared - KERNEL.keys()))


@cache
def kinds() -> Mapping[str, Kind]:
    """Return all kinds by name, the kernel's first. A declaration that is not a `Kind` is logged
    and left out."""
    return MappingProxyType({name: kind for name in kind_names() if (kind := _kind(name))})


@cache
def _kind(name: str) -> Kind | None:
    found = KERNEL.get(name)
    points = [each for each in entry_points() if (each.group, each.name) == (DECLARED, name)]
    for point in sorted(points):
        try:
            kind = point.load()
        except Exception as error:
            kind = error
        if isinstance(kind, Kind) and kind.name == name and not found:
            found = kind
        else:
            log.warning("%s = %s declares no new kind of plugins: %r", name, point.value, kind)
    return found


def kind_named(name: str, where: str | None = None) -> Kind:
    """Return the kind `name`; raise `PluginError` if there is none."""
    # Every rank asks for the kernel's kinds, and what is installed takes long to read.
    if (found := KERNEL.get(name) or _kind(name)) is None:
        what = f"there is no kind {name!r} of plugins"
        remedy = nearest(name, kinds())
        if owner := offered("kinds").get(name):
            what += (
                f": {owner}, which declares it, is not installed, or an older one is, "
                "whatever its code says"
            )
            remedy = (
                how_to_install(owner, f"--force-reinstall {owner}")
                + "; for a checkout, repeat it with --editable"
            )
        raise PluginError(what, kind="missing", where=where, remedy=remedy)
    return found


def job_keys() -> dict[str, str]:
    """Return the keys of the job file that list plugins of the kernel's kinds, each with its
    kind."""
    return {kind.job_key: kind.name for kind in BUILTIN if kind.job_key}
