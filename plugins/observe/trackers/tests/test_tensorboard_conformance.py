"""The observer passes the conformance kit."""

from __future__ import annotations

from rolemesh_testing import ObserverConformance


class TestConformance(ObserverConformance):
    plugin = "tensorboard"
    options = {"metrics": ["reward", "actor/*"], "interval_s": 0}
    bad_options = ({"folder": "../x"}, {"metrics": "reward"})
    examples = 10
