"""Features that trainers share. In each trainer two ranks take the steps that one rank of `fsdp` takes."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trainer_group

from rolemesh.api.batch import Batch, Ragged

LOSSES = "rolemesh_training.losses:"
ITEMS: dict[str, dict[str, Any]] = {
    "accumulation": {"micro_batch_rows": 1},
    "epochs": {"epochs": 2},
    "clipping": {"clip_norm": 0.05},
    "cosine": {"schedule": "cosine", "schedule_updates": 3, "warmup_steps": 1},
    "linear": {"schedule": "linear", "schedule_updates": 3, "min_lr_ratio": 0.1},
    "wsd": {"schedule": "wsd", "schedule_updates": 3, "decay_updates": 2},
    "adam": {"optimizer": "adam"},
    "sgd": {"optimizer": "sgd", "momentum": 0.5},
    "activation checkpointing": {"gradient_checkpointing": True},
    "value head": {"task": "value", "loss": f"{LOSSES}value"},
    "classification": {"task": "classification", "loss": f"{LOSSES}classification"},
    "random weights": {"init": "random"},
}


@pytest.fixture(scope="module")
def model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shutil.copytree(tiny_model, tmp_path_factory.mktemp("padded") / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pad_token_id": 0}))
    return folder


def batch(seed: int, *, labels: bool) -> Batch:
    """Four rows that any of the losses takes. Only a classifier reads `labels`; all others refuse them."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(1, 61, size=n) for n in (3, 4, 3, 5)]
    completions = [rng.integers(1, 61, size=n) for n in (4, 2, 5, 3)]
    numbers = [rng.normal(size=len(row)).astype(np.float32) for row in completions]
    return Batch(
        {
            "prompt_ids": Ragged.from_rows(prompts, np.int32),
            "completion_ids": Ragged.from_rows(completions, np.int32),
            "returns": Ragged.from_rows(numbers, np.float32),
            "values": Ragged.from_rows([number * 0.1 for number in numbers], np.float32),
            "input_ids": Ragged.from_rows(completions, np.int32),
            **({"label": np.array([0, 1, 1, 0])} if labels else {}),
        }
    )


@pytest.mark.parametrize(
    "item",
    [pytest.param(item, marks=pytest.mark.more if item == "accumulation" else pytest.mark.soak) for item in ITEMS],
)
def test_two_ranks_take_the_steps_of_one(alone, trainer, model, item):
    group, own = trainer
    given = {"model": str(model), "lr": 1e-2, "init_seed": 5, **ITEMS[item]}
    batches = [batch(seed, labels=item == "classification") for seed in range(3)]
    one = alone(trainer_group.train, 1, given, batches, [4])
    two = group(trainer_group.train, 2, {**given, **own}, batches, [3, 1])
    wanted, found = trainer_group.assembled(one), trainer_group.assembled(two)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4, err_msg=name)
    for name in ("loss", "grad_norm", "lr"):
        assert two[0]["metrics"][name] == pytest.approx(one[0]["metrics"][name], rel=1e-3), name


def threads(workload: Any, ctx: Any) -> list[int]:
    """The threads of a rank with two cores: by default, and after a person has said one."""
    import torch

    found = []
    for said in (workload.env["OMP_NUM_THREADS"], "1"):
        os.environ["OMP_NUM_THREADS"] = said
        torch.set_num_threads(1)
        type(workload)(workload.options).setup(replace(ctx, cpus=2.0))
        found.append(torch.get_num_threads())
    return found


@pytest.mark.more
def test_a_person_says_how_many_threads_a_rank_has(alone, model):
    given = {"model": str(model), "frozen": True}
    assert alone(threads, 1, given) == [[2, 1]]
