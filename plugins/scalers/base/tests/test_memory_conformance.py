"""The standard tests of a scaler."""

from __future__ import annotations

from rolemesh_testing import ScalerConformance


class TestMemory(ScalerConformance):
    plugin = "memory"
    options = {"roles": ["rollout", "trainer"]}
    bad_options = ({"full": 0}, {"full": 1.1}, {"agree": 0}, {"role": "work"})
