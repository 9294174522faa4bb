"""No rank has the whole model in memory to keep a part of it."""

from __future__ import annotations

import pytest
import torch
import trainer_group
from transformers import LlamaConfig, LlamaForCausalLM

WIDE = LlamaConfig(
    vocab_size=2048,
    hidden_size=768,
    intermediate_size=3072,
    num_hidden_layers=8,
    num_attention_heads=12,
    num_key_value_heads=4,
)


@pytest.mark.parametrize(
    ("init", "dtype"),
    [
        ("pretrained", torch.bfloat16),
        pytest.param("pretrained", torch.float32, marks=pytest.mark.soak),
        pytest.param("random", torch.float32, marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_a_rank_of_two_grows_by_its_half(group, tmp_path, init, dtype):
    torch.manual_seed(0)
    model = LlamaForCausalLM(WIDE)
    whole = 4 * sum(parameter.numel() for parameter in model.parameters())
    model.to(dtype).save_pretrained(tmp_path, max_shard_size="50MB")
    del model
    # A classifier runs no forward pass in `setup`; others measure there which rows they may pack.
    options = {"model": str(tmp_path), "init": init, "frozen": True, "task": "classification"}
    for grown in group(trainer_group.growth, 2, options):
        print(f"{grown / whole:.3f}")
        assert 0.45 * whole < grown < 0.75 * whole
