"""The standard tests of a workload, for ZeRO 3 on gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolemesh import Batch, Ragged
from rolemesh_testing import WorkloadConformance, override

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "sft"
VOCAB = 256


class TestDeepSpeed(WorkloadConformance):
    plugin = "deepspeed"
    options = {"model": "tiny-llama", "init": "random", "lr": 0.01, "config": {"zero_optimization": {"stage": 3}}}
    bad_options = (
        {"model": "nowhere"},
        {"init": "pretrained"},
        {"lr": 0.0},
        {"config": {"zero_optimization": {"stage": 4}}},
        {"config": {"train_batch_size": 8}},
    )
    world_sizes = (2,)
    steps = 1

    @pytest.fixture
    def base(self) -> Path:
        """The folder with the model's folder."""
        return EXAMPLE

    def step(self, role: Any, step: int) -> None:
        rng = np.random.default_rng(step)
        rows = [rng.integers(0, VOCAB, size=n) for n in (9, 3, 6, 4, 7)]
        masks = [np.arange(len(row)) >= 2 for row in rows]
        role.train(
            batch=Batch({"input_ids": Ragged.from_rows(rows, np.int32), "loss_mask": Ragged.from_rows(masks, np.int8)})
        )
        prompts, completions = rows[:2], rows[2:4]
        role.logprobs(
            batch=Batch(
                {
                    "prompt_ids": Ragged.from_rows(prompts, np.int32),
                    "completion_ids": Ragged.from_rows(completions, np.int32),
                }
            )
        )
        role.weights()

    @override("sums over ranks round differently; test_ranks.py holds groups of several sizes against one rank")
    def test_the_world_size_does_not_change_results(self) -> None:
        """`test_ranks_with_uneven_rows_take_the_step_of_one_rank`."""
