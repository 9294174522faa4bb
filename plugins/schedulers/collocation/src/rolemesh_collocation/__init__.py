"""Roles that share slots: rank i of each role of a group is on slot i, with the same cores and GPUs."""

from __future__ import annotations

from rolemesh_collocation.options import CollocationOptions
from rolemesh_collocation.scheduler import CollocationScheduler

__all__ = ["CollocationOptions", "CollocationScheduler"]
