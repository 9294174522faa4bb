"""The engine's side of a rank's context."""

from __future__ import annotations

from typing import Any

from rolemesh.api.port import LocalPort
from rolemesh.api.workload import RankContext

__all__ = ["port_of"]


def port_of(ctx: RankContext[Any]) -> LocalPort:
    """Return the port that this engine handed to the context. Raises `TypeError` for that of another engine."""
    if not isinstance(ctx.port, LocalPort):
        raise TypeError(f"{type(ctx.port).__name__} is the port of another engine")
    return ctx.port
