"""The standard tests of a workload, for a part of a model on gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rolemesh import Batch
from rolemesh_testing import WorkloadConformance, override


@pytest.mark.soak  # `ddp`'s own run in every test run, and jobs with stages in tests/e2e/test_stages.py
class TestStage(WorkloadConformance):
    plugin = "stage"
    options = {"model": "own_stages.py:back", "loss": "own_stages.py:squared_error", "lr": 0.01}
    bad_options = ({"model": "nowhere"}, {"model": "own_stages.py:no_such_function"}, {"epochs": 2}, {"task": "value"})
    world_sizes = (2,)
    steps = 1

    @pytest.fixture
    def base(self) -> Path:
        """The folder of the module."""
        return Path(__file__).parent

    def step(self, role: Any, step: int) -> None:
        """One micro-batch goes on to a loss, the other one's gradients come from elsewhere."""
        rng = np.random.default_rng(step)
        first, second = (torch.from_numpy(rng.normal(size=(4, 5)).astype(np.float32)) for _ in range(2))
        role.forward(batch=Batch({"hidden": first}))
        role.loss(batch=Batch({"hidden": second}), more=Batch({"y": np.arange(4, dtype=np.float32)}), micro=1)
        role.backward(gradients=Batch({"y": torch.ones(4)}))
        role.backward(micro=1)
        role.update(weight=8.0)
        role.predict(batch=Batch({"hidden": first}))
        role.weights()

    @override("gradients are summed in another order; test_stages.py holds groups of several sizes against one process")
    def test_the_world_size_does_not_change_results(self) -> None:
        """`test_roles_of_several_sizes_get_the_gradients_of_one_process`."""
