"""Updates of every trainer against those that transformers' Trainer makes, and TRL's GRPOTrainer."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trainer_group
from tests.judges import trl_side
from tests.judges.sides import VOCABULARY, loaded, padded, rollouts, tokenizer

from rolemesh.api.batch import Batch, Ragged
from rolemesh.runs.digest import digest

pytestmark = pytest.mark.soak

UPDATES = 6
ZERO = {stage: {"config": {"zero_optimization": {"stage": stage}}} for stage in (1, 2, 3)}
TRAINERS: dict[str, tuple[str, list[int], dict[str, Any]]] = {
    # name: workload, rows of each rank, its own options
    "fsdp": ("fsdp", [8], {}),
    "fsdp, 2 ranks": ("fsdp", [5, 3], {}),
    "fsdp, 2 ranks, micro-batches": ("fsdp", [6, 2], {"micro_batch_rows": 1}),
    "fsdp, activation checkpointing": ("fsdp", [8], {"gradient_checkpointing": True}),
    "ddp": ("ddp", [8], {}),
    "ddp, 2 ranks, micro-batches": ("ddp", [3, 5], {"micro_batch_rows": 2}),
    "ZeRO 1": ("deepspeed", [4, 4], ZERO[1]),
    "ZeRO 2, micro-batches": ("deepspeed", [4, 4], {**ZERO[2], "micro_batch_rows": 2}),
    "ZeRO 3": ("deepspeed", [5, 3], ZERO[3]),
}
OPTIMIZER = {"lr": 3e-3, "weight_decay": 0.1, "betas": (0.9, 0.95), "clip_norm": 0.5}
SCHEDULE = {"schedule": "linear", "schedule_updates": UPDATES}
ARGUMENTS = {
    "learning_rate": 3e-3,
    "weight_decay": 0.1,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "max_grad_norm": 0.5,
    "lr_scheduler_type": "linear",
    "max_steps": UPDATES,
    "per_device_train_batch_size": 8,
}
"""What `OPTIMIZER` and `SCHEDULE` say, in the Trainer's words."""


def texts() -> list[list[list[int]]]:
    """Eight rows for each update."""
    rng = np.random.default_rng(0)
    return [[rng.integers(3, VOCABULARY, rng.integers(2, 10)).tolist() for _ in range(8)] for _ in range(UPDATES)]


def in_order(kind: type) -> type:
    """The Trainer, which takes its rows in the order that they lie in."""

    class InOrder(kind):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    return InOrder


def of_trainer(folder: Path, **more: Any) -> dict[str, np.ndarray]:
    """The weights after the Trainer's updates on `texts`."""
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        **{**ARGUMENTS, **more},
    )
    judge = in_order(Trainer)(
        model=loaded(folder),
        args=arguments,
        train_dataset=[{"input_ids": row} for rows in texts() for row in rows],
        data_collator=DataCollatorForLanguageModeling(tokenizer(), mlm=False),
    )
    judge.train()
    return weights(judge.model)


def weights(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().float().numpy().copy() for name, value in model.state_dict().items()}


def differ(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], start: dict[str, np.ndarray]) -> float:
    """How far the updates of both are apart, as a share of how far the judge's weights went."""
    found = {name: value for name, value in found.items() if not name.startswith("__")}
    assert found.keys() == wanted.keys()
    way = np.sqrt(sum(float(np.square(wanted[name] - start[name]).sum()) for name in wanted))
    apart = np.sqrt(sum(float(np.square(wanted[name] - found[name]).sum()) for name in wanted))
    print(f"apart {apart / way:.1e} of a way of {way:.2e}")
    assert way > 0.05
    return apart / way


@pytest.fixture(scope="module")
def judged(models: dict[str, Path]) -> dict[str, np.ndarray]:
    return of_trainer(models["llama"])


def rows(lists: list[list[int]]) -> Batch:
    return Batch({"input_ids": Ragged.from_rows([np.array(row) for row in lists], np.int32)})


@pytest.mark.parametrize("name", TRAINERS)
def test_six_updates_are_those_of_the_trainer(models, groups, judged, name):
    workload, shares, own = TRAINERS[name]
    options = {"model": str(models["llama"]), **OPTIMIZER, **SCHEDULE, **own}
    batches = [rows(lists) for lists in texts()]
    results = groups(workload)(trainer_group.train, len(shares), options, batches, shares)
    found = trainer_group.assembled(results)
    assert differ(found, judged, weights(loaded(models["llama"]))) < 5e-5


OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the Trainer accumulates gradients": ({}, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}),
    "SGD": (
        {"optimizer": "sgd", "momentum": 0.5, "lr": 0.1},
        {"optim": "sgd", "optim_args": "momentum=0.5", "learning_rate": 0.1},
    ),
    "cosine to a tenth": (
        {"schedule": "cosine", "min_lr_ratio": 0.1},
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
    ),
    "no clipping": ({"clip_norm": None}, {"max_grad_norm": 0.0}),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_other_settings_make_the_updates_of_the_trainer(models, groups, case):
    own, theirs = OTHERS[case]
    options = {"model": str(models["llama"]), **OPTIMIZER, **SCHEDULE, **own}
    results = groups("fsdp")(trainer_group.train, 2, options, [rows(lists) for lists in texts()], [5, 3])
    wanted = of_trainer(models["llama"], **theirs)
    assert differ(trainer_group.assembled(results), wanted, weights(loaded(models["llama"]))) < 5e-5


@pytest.mark.parametrize("name", ["fsdp, 2 ranks", "ddp, 2 ranks, micro-batches", "ZeRO 2, micro-batches", "ZeRO 3"])
def test_a_job_that_went_on_from_a_snapshot_has_made_the_updates_of_the_trainer(models, groups, judged, name):
    workload, shares, own = TRAINERS[name]
    options = {"model": str(models["llama"]), **OPTIMIZER, **SCHEDULE, **own}
    batches = [rows(lists) for lists in texts()]
    group = groups(workload)
    straight = group(trainer_group.train_and_return_to, len(shares), options, batches, shares, 3)
    early = [result["early"] for result in straight]
    resumed = group(trainer_group.continue_from, len(shares), options, early, batches[3:], shares)
    assert [digest(each["state"]) for each in resumed] == [digest(each["state"]) for each in straight]
    assert differ(trainer_group.assembled(resumed), judged, weights(loaded(models["llama"]))) < 5e-5


@pytest.fixture(scope="module")
def policies(models: dict[str, Path], trl: None) -> tuple[list[Batch], dict[str, np.ndarray]]:
    """Rollouts of four updates, half of each without advantage, and TRL's weights after them."""
    from trl import GRPOTrainer

    halves = [(1.0, -1.0, 0.5, -0.5, 0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 1.0, -1.0, 0.0, 0.0, 2.0, -2.0)]
    batches = [rollouts(models["llama"], seed, advantage=halves[seed % 2], off=0.1) for seed in range(4)]

    class Given(in_order(GRPOTrainer)):  # type: ignore[misc]
        def _prepare_inputs(self, _: Any) -> Any:
            return padded(batches[self._step])

    config = {
        **ARGUMENTS,
        "max_steps": len(batches),
        "loss_type": "dapo",
        "beta": 0.05,
        "lr_scheduler_type": "constant",
    }
    config.pop("per_device_train_batch_size")
    judge = trl_side.grpo_trainer(models["llama"], kind=Given, gradient_accumulation_steps=1, **config)
    judge.train()
    return batches, weights(judge.model)


@pytest.mark.parametrize("name", TRAINERS)
def test_updates_of_grpo_with_a_kl_penalty_are_those_of_trl(models, groups, policies, name):
    workload, shares, own = TRAINERS[name]
    batches, wanted = policies
    loss = {"loss": "rolemesh_training.losses:grpo", "loss_options": {"kl_coef": 0.05}}
    options = {"model": str(models["llama"]), **OPTIMIZER, **loss, **own}
    results = groups(workload)(trainer_group.train, len(shares), options, batches, shares)
    assert differ(trainer_group.assembled(results), wanted, weights(loaded(models["llama"]))) < 1e-5
