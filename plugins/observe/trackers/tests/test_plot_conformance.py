"""The observer passes the conformance kit."""

from __future__ import annotations

from rolemesh_testing import ObserverConformance


class TestConformance(ObserverConformance):
    plugin = "plot"
    options = {"metrics": ["reward", "actor/loss"]}
    bad_options = ({"window": 0}, {"metrics": "reward"})
    examples = 20
