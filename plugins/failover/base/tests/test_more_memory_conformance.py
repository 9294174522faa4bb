"""The level passes the conformance kit."""

from __future__ import annotations

from rolemesh_testing import FailoverConformance


class TestConformance(FailoverConformance):
    plugin = "more-memory"
    bad_options = ({"factor": 1}, {"most": 4})
