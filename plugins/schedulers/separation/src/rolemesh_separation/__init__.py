"""Roles that must stay apart, ranks that are spread, and roles that need nodes with certain labels."""

from __future__ import annotations

from rolemesh_separation.options import SeparationOptions
from rolemesh_separation.scheduler import SeparationScheduler

__all__ = ["SeparationOptions", "SeparationScheduler"]
