"""The standard tests of a scaler."""

from __future__ import annotations

from rolemesh_testing import ScalerConformance


class TestBacklog(ScalerConformance):
    plugin = "backlog"
    options = {"roles": ["rollout", "trainer"]}
    bad_options = ({"busy": 0}, {"held_up": 1}, {"idle": 1}, {"agree": 0}, {"role": "work"})
