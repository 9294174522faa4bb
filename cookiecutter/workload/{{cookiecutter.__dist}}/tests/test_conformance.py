"""What every rolemesh workload must hold; `rolemesh plugins check .` runs it too, and prints a certificate."""

from typing import Any

import numpy as np
from rolemesh import Batch
from rolemesh_testing import WorkloadConformance


class TestConformance(WorkloadConformance):
    plugin = "{{ cookiecutter.name }}"
    options = {"rows": 7, "levels": 3}
    bad_options = ({"rows": 0}, {"up": 0.1})

    def step(self, role: Any, step: int) -> None:
        tasks = role.next()
        role.learn(answers=Batch({"score": np.float32(tasks["level"] <= step // 2)}))
