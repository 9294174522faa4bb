"""Tiny models and batches for the tests of trainers, and their groups of ranks on the path (`trainer_group`)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rolemesh.api.batch import Batch, Ragged

sys.path.insert(0, str(Path(__file__).parent / "training" / "tests"))
sys.path.insert(0, str(Path(__file__).parent / "ddp" / "tests"))

VOCAB = 61
IN_THE_SOAK = {
    ("TestVLLM", "test_the_same_seed_gives_the_same_results"),
    ("TestVLLM", "test_set_up_and_torn_down_twice"),
    ("TestDeepSpeed", "test_the_same_seed_gives_the_same_results"),
    ("TestDeepSpeed", "test_preloaded_modules_survive_a_fork"),
    ("TestDDP", "test_the_same_seed_gives_the_same_results"),
    ("TestDDP", "test_preloaded_modules_survive_a_fork"),
}
"""Standard tests that take long and repeat what others show: the kills at every operator boundary compare results, too,
and FSDP's ranks preload what those of DeepSpeed and DDP do."""


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and (getattr(item.cls, "__name__", ""), item.name) in IN_THE_SOAK:
            item.add_marker(pytest.mark.soak)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama folder with tied embeddings whose dimensions no group of 2 or 3 ranks divides evenly."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=8,
        intermediate_size=22,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        initializer_range=0.5,
        tie_word_embeddings=True,
    )
    folder = tmp_path_factory.mktemp("tiny-llama")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def texts() -> Callable[[int], Batch]:
    """``texts(seed)``: five rows of 3 to 9 tokens for `causal_lm`, the first two tokens of each not counted."""

    def build(seed: int) -> Batch:
        rng = np.random.default_rng(seed)
        rows = [rng.integers(0, VOCAB, size=n) for n in (9, 3, 6, 4, 7)]
        masks = [np.arange(len(row)) >= 2 for row in rows]
        return Batch({"input_ids": Ragged.from_rows(rows, np.int32), "loss_mask": Ragged.from_rows(masks, np.int8)})

    return build


@pytest.fixture
def rollouts() -> Callable[..., Batch]:
    """``rollouts(seed)``: three prompts with a common prefix, two completions each, for `grpo`."""

    def build(seed: int, advantage: tuple[float, ...] = (1.0, -1.0, 0.0, 0.0, -0.5, 2.0)) -> Batch:
        rng = np.random.default_rng(seed)
        prefix = rng.integers(0, VOCAB, size=11)
        questions = [rng.integers(0, VOCAB, size=n) for n in (3, 5, 1)]
        prompts = [np.concatenate([prefix, question]) for question in questions for _ in range(2)]
        completions = [rng.integers(0, VOCAB, size=n) for n in (4, 1, 2, 6, 3, 5)]
        old = [rng.normal(-4, 0.3, size=len(row)) for row in completions]
        return Batch(
            {
                "prompt_ids": Ragged.from_rows(prompts, np.int32),
                "completion_ids": Ragged.from_rows(completions, np.int32),
                "logprobs": Ragged.from_rows(old, np.float32),
                "advantage": np.array(advantage, dtype=np.float32),
                "group": np.repeat(np.arange(3), 2),
                "weight_version": np.zeros(6, dtype=np.int64),
            }
        )

    return build
