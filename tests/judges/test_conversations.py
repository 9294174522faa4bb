"""Rows of an agent, in which an environment wrote some tokens, and the corrections for older weights, against TRL's
GRPOTrainer: it makes its own mask, log-probabilities before the update, and importance weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.judges import trl_side
from tests.judges.sides import LENGTHS, LONGEST, agree, loaded, logprobs_of, ours, padded, rollouts

from rolemesh.api.batch import Batch, Ragged
from rolemesh_training.losses import grpo

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("trl")]

TOKEN = {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 1.5}
SEQUENCE = {"vllm_importance_sampling_mode": "sequence_truncate", "vllm_importance_sampling_clip_max": 1.5}
CISPO = {"loss_type": "cispo", "epsilon_high": 1.1, "beta": 0.0}
OURS = {"objective": "cispo", "clip_high": 0.1}
DAPO = {"loss_type": "dapo", "beta": 0.0}
GRPO = {"loss_type": "grpo", "beta": 0.0}
GSPO = {**GRPO, "importance_sampling_level": "sequence"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # name: options of the loss, TRL's config
    "truncated weights of tokens": ({"importance_sampling_cap": 1.5}, {**DAPO, **TOKEN}),
    "truncated weights of rows": (
        {"importance_sampling": "sequence", "importance_sampling_cap": 1.5}, {**DAPO, **SEQUENCE},
    ),
    "masked tokens": (
        {"importance_sampling_cap": 1.5, "over_cap": "mask"},
        {**DAPO, **TOKEN, "vllm_importance_sampling_mode": "token_mask"},
    ),
    "masked rows": (
        {"importance_sampling": "sequence", "importance_sampling_cap": 1.5, "over_cap": "mask"},
        {**DAPO, **SEQUENCE, "vllm_importance_sampling_mode": "sequence_mask"},
    ),
    "decoupled PPO without a cap": (
        {"importance_sampling": "token"}, {**DAPO, **TOKEN, "vllm_importance_sampling_clip_max": 1e9},
    ),
    "a mean over rows": (
        {"importance_sampling_cap": 1.5, "aggregation": "sequence_mean"}, {**GRPO, **TOKEN},
    ),
    "GSPO": (
        {"importance_sampling": "sequence", "importance_sampling_cap": 1.5, "ratio": "sequence"}, {**GSPO, **SEQUENCE},
    ),
    "CISPO": ({**OURS, "importance_sampling_cap": 1.5}, {**CISPO, **TOKEN}),
    "CISPO, truncated weights of rows": (
        {**OURS, "importance_sampling": "sequence", "importance_sampling_cap": 1.5}, {**CISPO, **SEQUENCE},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def later(models, tmp_path_factory):
    """The model of `models["llama"]` some updates later."""
    model = loaded(models["llama"])
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(0.05 * each.std() * torch.randn(each.shape, generator=generator))
    folder = tmp_path_factory.mktemp("later")
    model.save_pretrained(folder)
    return folder


def conversations(folder, **kind: Any) -> Batch:
    """Rows in which about a third of the tokens, and all of one row, were written by the environment."""
    batch = rollouts(folder, off=0.5, **kind)
    rng = np.random.default_rng(3)
    masks = [(rng.random(n) > 0.35).astype(np.uint8) for n in LENGTHS]
    masks[3][:] = 0
    mask = Ragged.from_rows(masks, np.uint8)
    return batch | {"completion_mask": mask, "logprobs": Ragged(batch["logprobs"].values * mask.values, mask.offsets)}


@pytest.mark.parametrize("pack", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("case", CASES)
def test_a_correction_of_conversations_has_the_gradient_of_trl(models, later, case, pack):
    options, config = CASES[case]
    batch = conversations(models["llama"])
    model = loaded(models["llama"]).eval()
    pairs = zip(batch["prompt_ids"], batch["completion_ids"], strict=True)
    old = Ragged.from_rows([logprobs_of(model, *pair) for pair in pairs], np.float32)
    found = ours(later, grpo, batch | {"old_logprobs": old}, pack=pack, **options)
    agree(found, trl_side.conversations(models["llama"], batch, later, **config))


@pytest.mark.parametrize("pack", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize(
    ("options", "config"),
    [
        ({}, DAPO),
        ({"aggregation": "sequence_mean"}, GRPO),
        ({"aggregation": "constant", "aggregation_length": LONGEST}, {"loss_type": "dr_grpo", "beta": 0.0}),
        ({"ratio": "sequence"}, GSPO),
        (OURS, CISPO),
        ({"kl_coef": 0.1}, {**DAPO, "beta": 0.1}),
    ],
    ids=str,
)
def test_rows_of_a_conversation_have_the_gradient_of_trls_tool_mask(models, options, config, pack):
    batch = conversations(models["llama"])
    mask = torch.ones(batch.rows, LONGEST, dtype=torch.int64)
    for i, row in enumerate(batch["completion_mask"]):
        mask[i, : len(row)] = torch.tensor(np.asarray(row, dtype=np.int64))
    changes = {"tool_mask": mask, "num_items_in_batch": (mask * padded(batch)["completion_mask"]).sum()}
    agree(
        ours(models["llama"], grpo, batch, pack=pack, **options),
        trl_side.policy(models["llama"], batch, changes, **config),
    )


def test_a_column_of_the_environments_tokens_is_not_in_trls_loss_and_not_in_ours(models, later):
    batch = conversations(models["llama"])
    noise = np.where(batch["completion_mask"].values != 0, batch["logprobs"].values, np.float32(-3.0))
    changed = batch | {"logprobs": Ragged(noise, batch["logprobs"].offsets)}
    for side in (
        lambda rows: ours(later, grpo, rows, importance_sampling="sequence", importance_sampling_cap=1.5),
        lambda rows: trl_side.conversations(models["llama"], rows, later, **DAPO, **SEQUENCE),
    ):
        assert torch.equal(side(batch).gradient, side(changed).gradient)
