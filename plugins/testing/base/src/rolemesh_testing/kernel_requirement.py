"""Reads which kernels a plugin's distribution requires."""

from __future__ import annotations

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rolemesh.kinds.installed import distribution

__all__ = ["kernel_requirements"]


def kernel_requirements(name: str) -> list[Requirement]:
    """Return what the distribution `name` requires of rolemesh. Requirements of its extras do not count."""
    every = [Requirement(need) for need in distribution(name).requires or ()]
    return [need for need in every if canonicalize_name(need.name) == "rolemesh" and not need.marker]
