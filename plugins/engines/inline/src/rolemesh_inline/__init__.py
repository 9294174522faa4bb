"""The engine `inline`: it runs a job in the process that waits for it."""

from __future__ import annotations

from rolemesh_inline.engine import InlineEngine, InlineRun

__all__ = ["InlineEngine", "InlineRun"]
