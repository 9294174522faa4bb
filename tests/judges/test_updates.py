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
from tests.judges.sides import VOCABULARY, loaded, logprobs_of, padded, rollouts, tokenizer

from rolemesh.api.batch import Batch, Ragged
from rolemesh.api.workload import RankContext
from rolemesh_rewards.questions import Questions, QuestionsOptions
from rolemesh_runtime.digest import digest

pytestmark = pytest.mark.soak

UPDATES = 6
ZERO = {stage: {"config": {"zero_optimization": {"stage": stage}}} for stage in (1, 2, 3)}
TRAINERS: dict[str, tuple[str, list[int], dict[str, Any]]] = {
    # name: workload, rows of each rank, its own options
    "fsdp": ("fsdp", [8], {}),
    "fsdp, 2 ranks": ("fsdp", [5, 3], {}),
    "fsdp, 2 ranks, micro-batches": ("fsdp", [6, 2], {"micro_batch_rows": 1}),
    "fsdp, 2 ranks, divided layers": ("fsdp", [5, 3], {"tensor_parallel": 2}),
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
"""`OPTIMIZER` and `SCHEDULE` as arguments of the Trainer."""


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


SGD: tuple[dict[str, Any], dict[str, Any]] = (
    {"optimizer": "sgd", "momentum": 0.5, "lr": 0.1},
    {"optim": "sgd", "optim_args": "momentum=0.5", "learning_rate": 0.1},
)
OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the Trainer accumulates gradients": ({}, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}),
    "SGD": SGD,
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


@pytest.mark.parametrize("epochs", [1, 2])
def test_steps_of_questions_make_the_epochs_of_the_trainer(models, groups, tmp_path, epochs):
    lists = [row for each in texts() for row in each]
    file, most = tmp_path / "q.jsonl", {1: 20, 2: 24}[epochs]  # of 48: the last batch of one epoch is shorter
    file.write_text("".join(f'{{"prompt": "{number}"}}\n' for number in range(len(lists))))
    asked = {"data": str(file), "shuffle": False, "held_out": 0, "prompts_per_step": most, "epochs": epochs}
    role = Questions(QuestionsOptions(**asked))
    role.setup(RankContext())
    steps = [[lists[int(row["prompt"])] for row in role.next()["row"]] for _ in range(7)]
    options = {"model": str(models["llama"]), **OPTIMIZER, **SGD[0]}
    found = groups("fsdp")(trainer_group.train, 1, options, [rows(each) for each in steps], [len(lists)])
    theirs = {**SGD[1], "max_steps": -1, "num_train_epochs": epochs, "per_device_train_batch_size": most}
    wanted = of_trainer(models["llama"], **theirs, lr_scheduler_type="constant")
    assert differ(trainer_group.assembled(found), wanted, weights(loaded(models["llama"]))) < 5e-5


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


def of_trl(folder: Path, batches: list[Batch], **more: Any) -> dict[str, np.ndarray]:
    """TRL's weights after an update from each batch."""
    from trl import GRPOTrainer

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
    judge = trl_side.grpo_trainer(folder, kind=Given, gradient_accumulation_steps=1, **{**config, **more})
    judge.train()
    return weights(judge.model)


HALVES = [(1.0, -1.0, 0.5, -0.5, 0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 1.0, -1.0, 0.0, 0.0, 2.0, -2.0)]
GRPO = {"loss": "rolemesh_training.losses:grpo", "loss_options": {"kl_coef": 0.05}}


@pytest.fixture(scope="module")
def policies(models: dict[str, Path], trl: None) -> tuple[list[Batch], dict[str, np.ndarray]]:
    """Rollouts of four updates, half of each without advantage, and TRL's weights after them."""
    batches = [rollouts(models["llama"], seed, advantage=HALVES[seed % 2], off=0.1) for seed in range(4)]
    return batches, of_trl(models["llama"], batches)


@pytest.mark.parametrize("name", TRAINERS)
def test_updates_of_grpo_with_a_kl_penalty_are_those_of_trl(models, groups, policies, name):
    workload, shares, own = TRAINERS[name]
    batches, wanted = policies
    options = {"model": str(models["llama"]), **OPTIMIZER, **GRPO, **own}
    results = groups(workload)(trainer_group.train, len(shares), options, batches, shares)
    assert differ(trainer_group.assembled(results), wanted, weights(loaded(models["llama"]))) < 1e-5


@pytest.mark.usefixtures("trl")
@pytest.mark.parametrize("name", ["fsdp, 2 ranks", "ZeRO 2, micro-batches"])
def test_updates_of_a_policy_with_dropout_are_those_of_trl_without_it(models, groups, name):
    """With SGD: some biases of GPT-2 have no gradient but rounding, which Adam would make as large as any other."""
    workload, shares, own = TRAINERS[name]
    # Prompts of one length: TRL pads on the left, which moves GPT-2's positions.
    given = {"prompts": (5, 5, 5, 5), "off": 0.0}
    batches = [rollouts(models["gpt2"], seed, advantage=HALVES[seed % 2], **given) for seed in range(2)]
    options = {"model": str(models["gpt2"]), **OPTIMIZER, **SGD[0], **GRPO, **own}
    first = groups(workload)(trainer_group.train, len(shares), options, batches[:1], shares)
    assert first[0]["metrics"]["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert first[0]["metrics"]["clip_fraction"] == 0.0
    results = groups(workload)(trainer_group.train, len(shares), options, batches, shares)
    wanted = of_trl(models["gpt2"], batches, **SGD[1])
    assert differ(trainer_group.assembled(results), wanted, weights(loaded(models["gpt2"]))) < 1e-5


@pytest.fixture(scope="module")
def preferences(models: dict[str, Path], trl: None) -> tuple[list[Batch], dict[str, np.ndarray]]:
    """Pairs of six updates, and the weights after those of TRL's DPOTrainer."""
    from trl import DPOConfig, DPOTrainer

    rng = np.random.default_rng(0)

    def words(most: int) -> list[str]:
        texts = [rng.integers(3, VOCABULARY, rng.integers(1, most)) for _ in range(4 * UPDATES)]
        return ["".join(f" w{token}" for token in text) for text in texts]

    config = {**trl_side.COMMON, **ARGUMENTS, **SGD[1], "per_device_train_batch_size": 4, "beta": 0.3}
    judge = in_order(DPOTrainer)(
        loaded(models["llama"]),
        args=DPOConfig(output_dir=tempfile.mkdtemp(), **config),
        train_dataset=trl_side.dataset({"prompt": words(8), "chosen": words(6), "rejected": words(6)}),
        processing_class=tokenizer(),
    )
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    given = [[list(row) for row in judge.train_dataset[name]] for name in names]
    reference = loaded(models["llama"]).eval()
    columns: dict[str, Any] = {n: Ragged.from_rows(rows, np.int32) for n, rows in zip(names, given, strict=True)}
    for name, answers in zip(("ref_chosen", "ref_rejected"), given[1:], strict=True):
        pairs = zip(given[0], answers, strict=True)
        columns[name] = np.float32([logprobs_of(reference, prompt, answer).sum() for prompt, answer in pairs])
    judge.train()
    whole = Batch(columns)
    return [whole[4 * i : 4 * i + 4] for i in range(UPDATES)], weights(judge.model)


@pytest.mark.parametrize(
    ("workload", "shares", "own"),
    [("fsdp", [3, 1], {"micro_batch_rows": 1}), ("ddp", [4], {}), ("deepspeed", [2, 2], ZERO[3])],
    ids=["fsdp, 2 ranks, micro-batches", "ddp", "ZeRO 3"],
)
def test_six_updates_of_dpo_are_those_of_trl(models, groups, preferences, workload, shares, own):
    batches, wanted = preferences
    loss = {"loss": "rolemesh_training.losses:dpo", "loss_options": {"beta": 0.3}}
    options = {"model": str(models["llama"]), **OPTIMIZER, **SCHEDULE, **SGD[0], **loss, **own}
    results = groups(workload)(trainer_group.train, len(shares), options, batches, shares)
    assert differ(trainer_group.assembled(results), wanted, weights(loaded(models["llama"]))) < 1e-5
