"""The observer passes the conformance kit."""

from __future__ import annotations

from rolemesh_testing import ObserverConformance


class TestConformance(ObserverConformance):
    plugin = "prometheus"
    options = {"interval_s": 0}
    bad_options = ({"port": -1}, {"metrics": "reward"})
    examples = 5
