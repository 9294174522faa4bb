"""The observer passes the conformance kit."""

from __future__ import annotations

from rolemesh_testing import ObserverConformance


class TestConformance(ObserverConformance):
    plugin = "otel"
    options = {"endpoint": "http://127.0.0.1:9", "interval_s": 0}
    bad_options = ({"endpoint": "ftp://x"}, {"timeout_s": 0})
    examples = 5
