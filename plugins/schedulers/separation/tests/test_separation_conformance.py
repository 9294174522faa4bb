"""The strategy passes the conformance kit."""

from __future__ import annotations

from rolemesh_testing import SchedulerConformance


class TestConformance(SchedulerConformance):
    plugin = "separation"
    options = {
        "apart": [["actor", "critic"]],
        "spread": {"data": {"over": "label.rack", "most": 4}},
        "nodes": {"data": {"zone": "north"}},
    }
    bad_options = ({"apart": [["actor", "actor"]]}, {"spread": {"data": "device"}}, {"spread": {"data": "label."}})
