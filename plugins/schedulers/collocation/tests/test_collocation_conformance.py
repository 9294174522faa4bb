"""The strategy passes the conformance kit."""

from __future__ import annotations

from rolemesh_testing import SchedulerConformance


class TestConformance(SchedulerConformance):
    plugin = "collocation"
    options = {"groups": [["actor", "critic"]]}
    bad_options = ({"groups": [["actor"]]}, {"groups": [["actor", "critic"], ["critic", "data"]]})


class TestConformanceWithTurns(SchedulerConformance):
    plugin = "collocation"
    options = {"groups": [{"roles": ["actor", "critic"], "ratio": {"actor": 1, "critic": 1}, "turns": True}]}
