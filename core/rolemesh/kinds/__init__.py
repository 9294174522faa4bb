"""The kinds of plugins that there are: the kernel's own, and those that installed distributions declare."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType

from rolemesh.errors import PluginError, nearest
from rolemesh.kinds.kind import BUILTIN, OFFERED, Kind, Place

__all__ = ["DECLARED", "KERNEL", "Kind", "Place", "job_keys", "kind_named", "kind_names", "kinds"]

DECLARED = "rolemesh.kinds"
"""The entry-point group of kinds."""

log = logging.getLogger("rolemesh.plugins")
KERNEL = MappingProxyType({kind.name: kind for kind in BUILTIN})
"""The kernel's own kinds by name."""


def kind_names() -> tuple[str, ...]:
    """The names of all kinds, the kernel's first; nothing that declares one is imported for them."""
    return (*KERNEL, *sorted({point.name for point in entry_points(group=DECLARED)} - KERNEL.keys()))


@cache
def kinds() -> Mapping[str, Kind]:
    """All kinds by name, the kernel's first. What is declared and is no kind is told in the log and left out."""
    found = dict(KERNEL)
    for point in sorted(entry_points(group=DECLARED)):
        try:
            kind = point.load()
        except Exception as error:
            kind = error
        if not isinstance(kind, Kind) or kind.name != point.name:
            log.warning("%s = %s declares no kind of plugins: %r", point.name, point.value, kind)
        elif point.name in found:
            log.warning("%s = %s declares a kind that there is already", point.name, point.value)
        else:
            found[point.name] = kind
    return MappingProxyType(found)


def kind_named(name: str, where: str | None = None) -> Kind:
    """The kind `name`. Raises `PluginError` if there is none."""
    if name in KERNEL:
        return KERNEL[name]  # every rank asks, and what is installed takes long to read
    if (found := kinds().get(name)) is None:
        remedy = f"pip install {OFFERED[name]}" if name in OFFERED else nearest(name, kinds())
        raise PluginError(f"there is no kind {name!r} of plugins", where=where, remedy=remedy)
    return found


def job_keys() -> dict[str, str]:
    """The keys of the job file that list plugins of the kernel's kinds, each with the kind of these."""
    return {kind.job_key: kind.name for kind in BUILTIN if kind.job_key}
