"""New weights under the names that they have in a trainer's memory, for families whose files have others."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {"sliding_window": 128},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 256},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}


def made(kind: str, like: Path, folder: Path) -> tuple[Any, dict[str, Any]]:
    """Write a random model with the tokenizer of `like`; return another one, and its weights as a trainer sends
    them."""
    import torch
    from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

    known = AutoConfig.from_pretrained(like).to_dict()
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim")
    names += ("num_key_value_heads", "max_position_embeddings", "eos_token_id", "pad_token_id", "initializer_range")
    shape = {name: known[name] for name in names} | {"bos_token_id": None} | FAMILIES[kind]
    torch.manual_seed(1)
    first, other = (AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**shape)).float().eval() for _ in range(2))
    shutil.copytree(like, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    first.save_pretrained(folder)
    return other, {name: p.detach().numpy() for name, p in other.named_parameters()}


@pytest.mark.more
@pytest.mark.parametrize("kind", ["gemma2", "gpt2"])
def test_a_rollout_takes_the_weights_of_a_trainer_of_its_family(
    kind: str, tiny_model: Path, tmp_path: Path, make_rank: Callable[..., Any], prompts: Any, greedy: Any
) -> None:
    model, weights = made(kind, tiny_model, tmp_path / "model")
    rank = make_rank("VLLMWorkload", model=str(tmp_path / "model"), max_tokens=8)
    rank.ready()
    rank.call("load_weights", weights | {"__version__": np.array([1], np.int64)})
    found, _ = rank.call("evaluate", prompts(3))
    assert [row.tolist() for row in found["completion_ids"]] == [greedy(model, row, 8) for row in found["prompt_ids"]]


@pytest.mark.more
def test_a_mixture_of_experts_is_refused_where_vllm_would_answer_wrongly(
    tiny_model: Path, tmp_path: Path, make_rank: Callable[..., Any]
) -> None:
    _, weights = made("qwen3_moe", tiny_model, tmp_path / "model")
    rank = make_rank("VLLMWorkload", model=str(tmp_path / "model"))
    rank.ready()
    with pytest.raises(ValueError, match="takes new weights on GPUs only"):
        rank.call("load_weights", weights)
