"""The strategy passes the conformance kit."""

from __future__ import annotations

from rolemesh_testing import SchedulerConformance


class TestConformance(SchedulerConformance):
    plugin = "pd"
    options = {"prefill": "prefill", "decode": "decode", "near": "label.rack"}
    bad_options = ({"ratio": "1"}, {"decode": "prefill"}, {"near": "rack"})
    roles = ("prefill", "decode", "trainer")
