"""Routers' losses and the z-loss of a model's config count as in transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from every_model import config_of, model_of

from rolemesh import Batch, Ragged
from rolemesh_training import losses
from rolemesh_training.contract import LossContext

CPU = torch.device("cpu")
TEXTS = [[5, 6, 7, 8, 9, 10, 11], [12, 13, 14]]
ROUTED: dict[str, Any] = {"output_router_logits": True, "router_aux_loss_coef": 0.1, "aux_loss_coef": 0.1}


def ragged(rows: Any, dtype: Any = np.int32) -> Ragged:
    return Ragged.from_rows([np.asarray(row) for row in rows], dtype)


def padded(model: Any, **more: Any) -> Any:
    ids = torch.zeros(2, 7, dtype=torch.int64)
    for row, text in enumerate(TEXTS):
        ids[row, : len(text)] = torch.tensor(text)
    seen = (ids > 0).long()
    return model(input_ids=ids, attention_mask=seen, use_cache=False, **more), torch.where(seen > 0, ids, -100)


def gradient(model: torch.nn.Module, loss: torch.Tensor) -> torch.Tensor:
    parameters = [*model.parameters()]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat([(p * 0 if g is None else g).flatten() for g, p in zip(found, parameters, strict=True)])


def agree(model: torch.nn.Module, found: Any, wanted: torch.Tensor) -> None:
    mean = found.total / found.weight
    torch.testing.assert_close(mean, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient(model, mean), gradient(model, wanted), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_next", "jetmoe", "bamba"])
def test_a_text_has_the_loss_and_the_gradient_of_the_models_own_loss(kind, tmp_path):
    more = {"z_loss_coefficient": 0.01} if kind == "bamba" else ROUTED
    model = model_of(config_of(kind, **more), tmp_path)
    labels = padded(model)[1]
    judge = padded(model, labels=labels)[0].loss
    plain = torch.nn.functional.cross_entropy(padded(model)[0].logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    assert abs(float(judge - plain)) > 1e-3, "nothing is added"
    found = losses.causal_lm(model, Batch({"input_ids": ragged(TEXTS)}), LossContext(CPU, 0, 0, {}))
    agree(model, found, judge)


@pytest.mark.parametrize("loss", ["grpo", "ppo", "dpo"])
def test_a_loss_over_completions_adds_the_routers_loss_of_its_padded_rows(loss, tmp_path):
    """As TRL does: the loss, and the coefficient times `aux_loss` of the pass over the padded rows."""
    routed = model_of(config_of("mixtral", **ROUTED), tmp_path / "routed")
    plain = model_of(config_of("mixtral"), tmp_path / "plain")
    prompts, completions = ragged([text[:2] for text in TEXTS]), ragged([text[2:] for text in TEXTS])
    rows: dict[str, Any] = {"prompt_ids": prompts, "completion_ids": completions}
    rows["logprobs"] = ragged([np.full(len(text) - 2, -4.0) for text in TEXTS], np.float32)
    rows |= {"advantage": np.float32([1.0, 0.0]), "advantages": rows["logprobs"]}
    if loss == "dpo":  # each pair of rows is the batch of the judge: chosen ones, then rejected ones
        rows = {"prompt_ids": prompts[:1], "chosen_ids": completions[:1], "rejected_ids": ragged([TEXTS[1][2:]])}
        rows |= {"ref_chosen": np.float32([-9]), "ref_rejected": np.float32([-4])}
        texts = [TEXTS[0], [*TEXTS[0][:2], *TEXTS[1][2:]]]
    else:
        texts = TEXTS
    ids = torch.zeros(2, 7, dtype=torch.int64)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text)
    judge = routed(input_ids=ids, attention_mask=(ids > 0).long(), use_cache=False).aux_loss
    wanted = getattr(losses, loss)(plain, Batch(rows), LossContext(CPU, 0, 0, {}))
    found = getattr(losses, loss)(routed, Batch(rows), LossContext(CPU, 0, 0, {}))
    assert found.weight == wanted.weight
    mean = found.total / found.weight
    torch.testing.assert_close(mean, wanted.total / wanted.weight + 0.1 * judge, rtol=1e-5, atol=1e-5)
    both = gradient(plain, wanted.total / wanted.weight) + gradient(routed, 0.1 * judge)
    torch.testing.assert_close(gradient(routed, mean), both, rtol=1e-4, atol=1e-5)
