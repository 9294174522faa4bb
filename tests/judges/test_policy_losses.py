"""`grpo` and `ppo` against TRL's GRPOTrainer: loss and gradient of one batch."""

from __future__ import annotations

from typing import Any

import pytest
from tests.judges import trl_side
from tests.judges.sides import LONGEST, agree, ours, padded, rollouts

from rolemesh_training.losses import grpo, ppo

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("trl")]

HALF = (1.0, -1.0, 0.0, 0.0, 0.7, -0.7, 0.0, 0.0)
DAPO = {"loss_type": "dapo", "beta": 0.0}
GSPO = {"loss_type": "grpo", "beta": 0.0, "importance_sampling_level": "sequence"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # name: options of the loss, TRL's config, the batch
    "DAPO, a mean over tokens": ({}, DAPO, {}),
    "DAPO, a mean over the tokens of one micro-batch": ({}, {"loss_type": "bnpo", "beta": 0.0}, {}),
    "DAPO, rows without advantage": ({}, DAPO, {"advantage": HALF}),
    "DAPO's clip-higher": ({"clip_high": 0.28}, {**DAPO, "epsilon_high": 0.28}, {"off": 0.6}),
    "another temperature": ({"temperature": 0.7}, {**DAPO, "temperature": 0.7}, {}),
    "GRPO, a mean over rows": ({"aggregation": "sequence_mean"}, {"loss_type": "grpo", "beta": 0.0}, {}),
    "GRPO, rows without advantage": (
        {"aggregation": "sequence_mean"}, {"loss_type": "grpo", "beta": 0.0}, {"advantage": HALF},
    ),
    "Dr. GRPO's constant": (
        {"aggregation": "constant", "aggregation_length": LONGEST}, {"loss_type": "dr_grpo", "beta": 0.0}, {},
    ),
    "Dr. GRPO, rows without advantage": (
        {"aggregation": "constant", "aggregation_length": LONGEST}, {"loss_type": "dr_grpo", "beta": 0.0},
        {"advantage": HALF},
    ),
    "GSPO": ({"ratio": "sequence"}, GSPO, {}),
    "GSPO, long and short rows": ({"ratio": "sequence"}, GSPO, {"lengths": (1, 9, 2, 9, 1, 8, 2, 9)}),
    "GSPO's small clip": (
        {"ratio": "sequence", "clip": 3e-4, "clip_high": 4e-4}, {**GSPO, "epsilon": 3e-4, "epsilon_high": 4e-4},
        {"off": 1e-3},
    ),
    "GSPO's ratio, a mean over tokens": (
        {"ratio": "sequence", "aggregation": "token_mean"}, {**DAPO, "importance_sampling_level": "sequence"}, {},
    ),
    "KL penalty": ({"kl_coef": 0.1}, {**DAPO, "beta": 0.1}, {}),
    "KL penalty, half of the rows without advantage": (
        {"kl_coef": 1.0}, {**DAPO, "beta": 1.0}, {"advantage": HALF},
    ),
    "KL penalty, no row with an advantage": ({"kl_coef": 0.1}, {**DAPO, "beta": 0.1}, {"advantage": [0.0] * 8}),
    "KL penalty, no row with an advantage, a mean over rows": (
        {"kl_coef": 0.1, "aggregation": "sequence_mean"}, {"loss_type": "grpo", "beta": 0.1},
        {"advantage": [0.0] * 8},
    ),
    "KL penalty of GSPO": ({"kl_coef": 0.1, "ratio": "sequence"}, {**GSPO, "beta": 0.1}, {}),
    "completions of one token": ({"kl_coef": 0.05}, {**DAPO, "beta": 0.05}, {"lengths": (1,) * 8}),
    "empty completions": ({"kl_coef": 0.05}, {**DAPO, "beta": 0.05}, {"lengths": (5, 0, 9, 3, 7, 2, 0, 6)}),
    "empty completions, a mean over rows": (
        {"ratio": "sequence"}, GSPO, {"lengths": (5, 0, 9, 0, 7, 0, 0, 6)},
    ),
    "prompts of one token": ({}, DAPO, {"prompts": (1, 1, 2, 1)}),
}  # fmt: skip


@pytest.mark.parametrize("pack", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("case", CASES)
def test_a_policy_loss_has_the_gradient_of_trl(models, case, pack):
    options, config, kind = CASES[case]
    batch = rollouts(models["llama"], **kind)
    agree(ours(models["llama"], grpo, batch, pack=pack, **options), trl_side.policy(models["llama"], batch, **config))


@pytest.mark.parametrize("pack", [True, False], ids=["packed", "padded"])
def test_a_model_with_dropout_has_the_gradient_of_trl_without_it(models, pack):
    # Prompts of one length: TRL pads on the left, which moves GPT-2's positions.
    batch = rollouts(models["gpt2"], prompts=(5, 5, 5, 5))
    agree(ours(models["gpt2"], grpo, batch, pack=pack), trl_side.policy(models["gpt2"], batch, **DAPO))


@pytest.mark.parametrize("options", [{}, {"kl_coef": 0.1}], ids=str)
def test_ppo_with_an_advantage_for_each_token_has_the_gradient_of_trls_clipped_objective(models, options):
    batch = rollouts(models["llama"])
    each = padded(batch, ("advantages",))["advantages"]
    wanted = trl_side.policy(
        models["llama"], batch, {"advantages": each}, **{**DAPO, "beta": options.get("kl_coef", 0)}
    )
    agree(ours(models["llama"], ppo, batch, **options), wanted)


def test_truncated_importance_sampling_has_the_gradient_of_trls_correction(models):
    batch = rollouts(models["llama"], off=0.8)
    old = padded(batch | {"logprobs": batch["ref_logprobs"]})["old_per_token_logps"]
    sampled = padded(batch)["old_per_token_logps"]
    weight = (old - sampled).exp().clamp(max=1.5)  # TRL's token_truncate
    assert 0.1 < float((weight == 1.5).float().mean()) < 0.9
    wanted = trl_side.policy(
        models["llama"], batch, {"old_per_token_logps": old, "importance_sampling_ratio": weight}, **DAPO
    )
    with_old = batch | {"old_logprobs": batch["ref_logprobs"]}
    agree(ours(models["llama"], grpo, with_old, importance_sampling_cap=1.5), wanted)
