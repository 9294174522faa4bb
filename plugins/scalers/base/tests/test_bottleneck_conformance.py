"""The standard tests of a scaler."""

from __future__ import annotations

from rolemesh_testing import ScalerConformance


class TestBottleneck(ScalerConformance):
    plugin = "bottleneck"
    options = {"budget": 12}
    bad_options = ({"budget": 0}, {"gain": 0}, {"idle": 2}, {"role": "work"})
