"""The tests that every workload must pass; the wheel ships them, and names them in its entry points."""

from typing import Any

import numpy as np
from rolemesh import Batch
from rolemesh_testing import WorkloadConformance

__all__ = ["Conformance"]


class Conformance(WorkloadConformance):
    """Data for the tests; `rolemesh plugins check` runs them where the wheel is installed."""

    plugin = "{{ cookiecutter.name }}"
    options = {"rows": 7, "levels": 3}
    bad_options = ({"rows": 0}, {"up": 0.1})

    def step(self, role: Any, step: int) -> None:
        tasks = role.next()
        role.learn(answers=Batch({"score": np.float32(tasks["level"] <= step // 2)}))
