"""The kinds of plugins that there are: the kernel's own, and those that installed distributions declare."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType

from rolemesh.errors import PluginError, nearest
from rolemesh.kinds.builtin import BUILTIN
from rolemesh.kinds.kind import Kind, Place

__all__ = ["DECLARED", "Kind", "Place", "job_keys", "kind_named", "kinds"]

DECLARED = "rolemesh.kinds"
"""The entry-point group of kinds."""

log = logging.getLogger("rolemesh.plugins")
_KERNEL = {kind.name: kind for kind in BUILTIN}


@cache
def kinds() -> Mapping[str, Kind]:
    """All kinds by name, the kernel's first. What is declared and is no kind is told in the log and left out."""
    found = dict(_KERNEL)
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


def kind_named(name: str) -> Kind:
    """The kind `name`. Raises `PluginError` if there is none."""
    if name in _KERNEL:
        return _KERNEL[name]  # every rank asks, and what is installed takes long to read
    try:
        return kinds()[name]
    except KeyError:
        raise PluginError(f"there is no kind {name!r} of plugins", remedy=nearest(name, kinds())) from None


def job_keys() -> dict[str, str]:
    """The keys of the job file that list plugins, each with the kind of these."""
    return {kind.job_key: kind.name for kind in kinds().values() if kind.job_key}
