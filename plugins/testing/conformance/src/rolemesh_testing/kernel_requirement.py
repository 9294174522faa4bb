"""Which kernels a plugin's distribution says that it fits."""

from __future__ import annotations

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rolemesh.kinds.installed import distribution

__all__ = ["kernel_requirements"]


def kernel_requirements(name: str) -> list[Requirement]:
    """What the installed distribution `name` requires of rolemesh; what only its extras require does not count."""
    every = [Requirement(need) for need in distribution(name).requires or ()]
    return [need for need in every if canonicalize_name(need.name) == "rolemesh" and not need.marker]
