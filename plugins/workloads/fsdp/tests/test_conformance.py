"""The standard tests of a workload, for the trainer on gloo."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolemesh import Batch, Ragged
from rolemesh_testing import WorkloadConformance, override

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "sft"


class TestFSDP(WorkloadConformance):
    plugin = "fsdp"
    vocab = 256
    options = {"model": "tiny-llama", "init": "random", "lr": 0.01, "warmup_steps": 1}
    bad_options = (
        {"model": "nowhere"},
        {"init": "pretrained"},
        {"lr": 0.0},
        {"betas": [0.9, 1.5]},
        {"loss": "rolemesh_training.losses:no_such_loss"},
        {"loss": "rolemesh_training.losses:grpo", "loss_options": {"clipp": 0.2}},
    )
    world_sizes = (2, 1, 3)
    steps = 2

    @pytest.fixture
    def base(self) -> Path:
        """The folder with the model's folder."""
        return EXAMPLE

    def step(self, role: Any, step: int) -> None:
        rng = np.random.default_rng(step)
        rows = [rng.integers(0, self.vocab, size=n) for n in (9, 3, 6, 4, 7)]
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


@pytest.mark.soak
class TestAdapters(TestFSDP):
    options = {"model": "tiny", "lr": 0.01, "lora": {"rank": 4, "dropout": 0.1}}
    bad_options = ({"lora": {"rank": 0}}, {"lora": {"target": []}}, {"frozen": True}, {"init": "random"})
    vocab = 61
    world_sizes = (2, 1)

    @pytest.fixture
    def base(self, tiny_model: Path, tmp_path: Path) -> Path:
        """The folder with the model's folder, which has weights."""
        shutil.copytree(tiny_model, tmp_path / "tiny")
        return tmp_path


@pytest.mark.soak
class TestDividedLayers(TestFSDP):
    options = {**TestFSDP.options, "tensor_parallel": 2}
    bad_options = ({"tensor_parallel": 0}, {"lora": {}})
    world_sizes = (2, 4)
