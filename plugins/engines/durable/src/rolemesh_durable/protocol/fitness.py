"""The limits of a job's checks. Plain data."""

from __future__ import annotations

import msgspec

__all__ = ["Limits"]


class Limits(msgspec.Struct, frozen=True):
    """The limits that a check's numbers must keep; see `rolemesh_durable.checks.CheckOptions`."""

    check: str
    at_least: dict[str, float] = {}
    slower: float | None = None
