"""The phases of ranks: those of the core, and those that the shipped extensions add."""

from __future__ import annotations

from rolemesh_durable.extensions.calls import phases as calls
from rolemesh_durable.extensions.turns import phases as turns
from rolemesh_durable.protocol.rank.page import ADDED, PHASES

__all__ = ["ADDED", "PHASES", "calls", "turns"]
