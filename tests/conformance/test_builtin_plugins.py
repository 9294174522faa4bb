"""The kernel's own plugins pass the conformance kit."""

from __future__ import annotations

from rolemesh.testing import ObserverConformance, SchedulerConformance


class TestPack(SchedulerConformance):
    plugin = "pack"


class TestConsole(ObserverConformance):
    plugin = "console"
    options = {"metrics": ["reward"], "records": ["table"]}
    bad_options = ({"refresh_hz": 0},)
