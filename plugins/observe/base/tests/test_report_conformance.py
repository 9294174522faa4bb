"""The observer passes the conformance kit."""

from __future__ import annotations

from rolemesh_testing import ObserverConformance


class TestConformance(ObserverConformance):
    plugin = "report"
    bad_options = ({"folder": "x"},)
    examples = 3
