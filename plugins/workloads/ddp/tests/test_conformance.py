"""The standard tests of a workload, for a module of one's own on gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolemesh import Batch
from rolemesh_testing import WorkloadConformance, override


class TestDDP(WorkloadConformance):
    plugin = "ddp"
    options = {"model": "own_module.py:make", "loss": "own_module.py:squared_error", "lr": 0.01, "warmup_steps": 1}
    bad_options = (
        {"model": "own_module.py:no_such_function"},
        {"model": "nowhere"},
        {"task": "value"},
        {"bucket_mb": 0},
    )
    world_sizes = (2,)
    steps = 1

    @pytest.fixture
    def base(self) -> Path:
        """The folder of the module."""
        return Path(__file__).parent

    def step(self, role: Any, step: int) -> None:
        rng = np.random.default_rng(step)
        x = rng.normal(size=(9, 3)).astype(np.float32)
        role.train(batch=Batch({"x": x, "y": x.sum(1)}))
        role.weights()

    @override("dropout and running means differ by rank; test_ranks.py holds groups of several sizes against one rank")
    def test_the_world_size_does_not_change_results(self) -> None:
        """`test_ranks_with_uneven_rows_take_the_step_of_one_rank`."""
