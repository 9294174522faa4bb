"""The strategy passes the conformance kit."""

from __future__ import annotations

from rolemesh_testing import SchedulerConformance


class TestConformance(SchedulerConformance):
    plugin = "subgraph"
    bad_options = ({"roles": "actor"},)
