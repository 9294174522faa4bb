"""A workload that does everything right passes every standard test."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.conformance.counter import Counter

from rolemesh import Batch
from rolemesh.testing import WorkloadConformance


class TestCounter(WorkloadConformance):
    plugin = Counter
    options = {"start": 5}
    bad_options = ({"start": -1}, {"rows": 101})

    def step(self, role: Any, step: int) -> None:
        rows = role.noisy(rows=Batch({"index": np.arange(4 * step, 4 * step + 4)}))
        role.add(rows=role.squared(rows=rows))
