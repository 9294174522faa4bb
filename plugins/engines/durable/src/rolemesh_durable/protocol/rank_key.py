"""How a rank is called: its role, and its number there."""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["RankKey"]

RankKey: TypeAlias = tuple[str, int]
