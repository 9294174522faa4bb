"""The kernel's own plugins pass the conformance kit."""

from __future__ import annotations

from rolemesh.testing import SchedulerConformance


class TestPack(SchedulerConformance):
    plugin = "pack"
