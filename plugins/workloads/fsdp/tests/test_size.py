"""No rank has the whole model in memory to keep a part of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_rank_of_two_reads_its_half(group, tmp_path, dtype):
    assert_grows_by_less_than(0.75, group, tmp_path, "pretrained", dtype)


@pytest.mark.soak
def test_a_rank_of_two_keeps_its_half_of_random_weights(group, tmp_path):
    assert_grows_by_less_than(0.85, group, tmp_path, "random", torch.bfloat16)  # a decoder layer at a time is whole


def assert_grows_by_less_than(share: float, group: Any, folder: Path, init: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(WIDE)
    whole = 4 * sum(parameter.numel() for parameter in model.parameters())
    model.to(dtype).save_pretrained(folder, max_shard_size="50MB")
    del model
    options = {"model": str(folder), "init": init, "frozen": True}
    for grown in group(trainer_group.growth, 2, options):
        assert whole / 2 < grown < share * whole
