"""The plugins that come with the kernel pass the conformance kit."""

from __future__ import annotations

from rolemesh_testing import DiagnoserConformance, ObserverConformance, SchedulerConformance


class TestPack(SchedulerConformance):
    plugin = "pack"


class TestStandard(DiagnoserConformance):
    plugin = "standard"


class TestConsole(ObserverConformance):
    plugin = "console"
    options = {"metrics": ["reward"], "records": ["table"]}
    bad_options = ({"refresh_hz": 0},)
