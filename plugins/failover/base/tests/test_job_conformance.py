"""The level passes the conformance kit."""

from __future__ import annotations

from rolemesh_testing import FailoverConformance


class TestConformance(FailoverConformance):
    plugin = "job"
    bad_options = ({"max_attempts": 0}, {"window_s": 0})
