"""The limits of a job's checks, and their measurements on a node. Plain data."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

__all__ = ["Limits", "Measured", "Measurements"]


class Limits(msgspec.Struct, frozen=True):
    """The limits that a check's numbers must keep; see `rolemesh_durable.checks.CheckOptions`."""

    check: str
    at_least: dict[str, float] = {}
    slower: float | None = None


class Measured(msgspec.Struct, frozen=True):
    """The result of a check on a node: numbers of which more is better, or the reason why there are none."""

    check: str
    values: dict[str, float] = {}
    error: str = ""


Measurements: TypeAlias = tuple[Measured, ...]
"""The results of all checks of a job on a node."""
