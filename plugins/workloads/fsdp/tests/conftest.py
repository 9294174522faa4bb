"""Groups of ranks of `fsdp`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}


@pytest.fixture(scope="session")
def group() -> Iterator[Callable[..., list[Any]]]:
    """``group(scenario, world_size, options, *args)``: each rank's result; a rank's exception fails the test."""
    import trainer_group

    yield from trainer_group.served("rolemesh_fsdp:FSDPWorkload")


@pytest.fixture(scope="session")
def even_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``even_model(kind, **config)``: the folder of a model whose layers two ranks can divide, with tied embeddings."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    made: dict[str, Path] = {}

    def folder(kind: str = "llama", **config: Any) -> Path:
        key = repr((kind, sorted(config.items())))
        if key not in made:
            torch.manual_seed(0)
            given = AutoConfig.for_model(kind, **{**SIZES, "tie_word_embeddings": True, **config})
            model = AutoModelForCausalLM.from_config(given)
            for parameter in model.parameters():  # biases and norms too, which are 0 and 1 at first
                parameter.data.add_(torch.randn_like(parameter) * 0.1)
            made[key] = tmp_path_factory.mktemp(kind)
            model.save_pretrained(made[key])
        return made[key]

    return folder
