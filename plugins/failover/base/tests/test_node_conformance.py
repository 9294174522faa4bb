"""The level passes the conformance kit."""

from __future__ import annotations

from rolemesh_testing import FailoverConformance


class TestConformance(FailoverConformance):
    plugin = "node"
    bad_options = ({"max_attempts": 0}, {"when_full": "give up"}, {"node_wait_s": 0})


class TestConformanceWhereItDoesNotWait(FailoverConformance):
    plugin = "node"
    options = {"when_full": "fail"}
