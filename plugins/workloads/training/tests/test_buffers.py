"""Buffers of a model's state dict, such as the bias of a router, are part of weights, snapshots and exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trainer_group
from transformers import AutoModelForCausalLM, Glm4MoeConfig, Glm4MoeForCausalLM

from rolemesh.api.batch import Batch, Ragged
from rolemesh_checkpoint.reshard import merge
from rolemesh_training.model import buffers
from rolemesh_training.options import HuggingFaceOptions

BIAS = "model.layers.0.mlp.gate.e_score_correction_bias"
TEXT = torch.tensor([[5, 6, 7, 8, 9]])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts whose router has a bias, which is no parameter."""
    torch.manual_seed(0)
    size = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64}
    experts = {"moe_intermediate_size": 8, "n_routed_experts": 8, "num_experts_per_tok": 2}
    groups = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 0}
    made = Glm4MoeForCausalLM(Glm4MoeConfig(**size, **heads, **experts, **groups))
    dict(made.named_buffers())[BIAS].copy_(torch.linspace(-1, 1, 8))
    folder = tmp_path_factory.mktemp("router")
    made.save_pretrained(folder)
    return folder


def trained(workload: Any, ctx: Any, batch: Batch, folder: Path) -> dict[str, Any]:
    """Train once, restore the result, and let the last rank export it. Return weights, and the logits of a text."""
    found = trainer_group.train(workload, ctx, [batch], [2, 1])
    states: list[Any] = workload.engine.ranks.every.gather(found["state"])
    workload.restore(trainer_group.as_tensors(found["state"]))
    if ctx.rank == 1:
        type(workload).export(workload.options, trainer_group.as_tensors(merge(states)), folder)
    workload.engine.model.eval()
    with torch.no_grad():
        logits = workload.engine.model(input_ids=TEXT).logits
    return {"weights": found["weights"], "logits": logits.float().numpy()}


@pytest.mark.more
def test_an_export_computes_as_the_trained_model(trainer: Any, model: Path, tmp_path: Path) -> None:
    group, own = trainer
    rows = [np.random.default_rng(n).integers(1, 61, size=6) for n in range(3)]
    given = {"model": str(model), "lr": 1e-3, "init_seed": 5, **own}
    results = group(trained, 2, given, Batch({"input_ids": Ragged.from_rows(rows, np.int32)}), tmp_path / "out")
    np.testing.assert_array_equal(trainer_group.assembled(results)[BIAS], torch.linspace(-1, 1, 8).numpy())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        logits = loaded(input_ids=TEXT).logits.numpy()
    np.testing.assert_allclose(results[0]["logits"], logits, atol=1e-5)


def test_the_buffers_are_those_of_the_state_dict(model: Path) -> None:
    whole = AutoModelForCausalLM.from_pretrained(model)
    assert sorted(buffers(whole, HuggingFaceOptions(model=str(model)))) == [BIAS]
    assert whole.state_dict().keys() - dict(whole.named_parameters()).keys() == {BIAS}
    adapted = HuggingFaceOptions.model_validate({"model": str(model), "lora": {"rank": 2}})
    assert buffers(whole, adapted) == {}
