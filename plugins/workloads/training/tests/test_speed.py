"""A trainer counts the operations that torch counts, without padding, and knows the peak of common GPUs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MixtralConfig

from rolemesh.api.batch import Batch, Ragged
from rolemesh_training.contract import LossContext
from rolemesh_training.inputs import padded_inputs
from rolemesh_training.losses import causal_lm, grpo
from rolemesh_training.speed import Speed, peak_of, shape_of

CPU = torch.device("cpu")
SIZES = {"vocab_size": 97, "num_hidden_layers": 3, "num_attention_heads": 4, "attn_implementation": "eager"}
MODELS = {
    "llama": LlamaConfig(hidden_size=64, intermediate_size=176, num_key_value_heads=2, **SIZES),
    "tied": LlamaConfig(hidden_size=64, intermediate_size=176, head_dim=24, tie_word_embeddings=True, **SIZES),
    "gpt2": GPT2Config(n_embd=64, n_layer=3, n_head=4, vocab_size=97, attn_implementation="eager"),
}


def rows(lengths: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(1, 97, size=length) for length in lengths]


@pytest.mark.parametrize(("kind", "frozen"), [*((kind, False) for kind in MODELS), ("llama", True)])
def test_the_operations_of_a_training_pass_are_those_that_torch_counts(kind: str, frozen: bool) -> None:
    model = AutoModelForCausalLM.from_config(MODELS[kind]).train()
    if frozen:  # as with adapters: gradients pass through all layers, and few weights have one
        model.requires_grad_(False)
        model.get_input_embeddings().requires_grad_(True)
    speed = Speed(model, model.config, CPU, 1.0)
    speed.begin()
    batch = Batch({"input_ids": Ragged.from_rows(rows([48, 48]), np.int32)})
    with FlopCounterMode(display=False) as torchs:
        causal_lm(model, batch, LossContext(CPU, 0, 0, {})).total.backward()
    found = speed.metrics(2)
    assert found["tflops_per_s"] / found["tokens_per_s"] * 2 * 96 * 1e12 == pytest.approx(
        torchs.get_total_flops(), rel=0.02
    )
    assert found["mfu"] == found["tflops_per_s"]


def test_operations_of_packed_rows_count_a_common_prefix_once_and_only_logits_that_are_needed() -> None:
    model = AutoModelForCausalLM.from_config(MODELS["llama"]).train()
    prompt, one, other = rows([40, 30, 20])
    one[0], other[0] = 1, 2
    speed = Speed(model, model.config, CPU, None)
    columns = {
        "prompt_ids": Ragged.from_rows([prompt, prompt], np.int32),
        "completion_ids": Ragged.from_rows([one, other], np.int32),
        "logprobs": Ragged.from_rows([np.full(30, -4.0), np.full(20, -4.0)], np.float32),
        "advantage": np.array([1.0, -1.0], np.float32),
    }
    context = LossContext(CPU, 0, 0, {})
    grpo(model, Batch(columns), context)  # measures the model
    speed.begin()
    with FlopCounterMode(display=False) as torchs:
        grpo(model, Batch(columns), context).total.backward()
    shape = shape_of(model, model.config)
    tokens, pairs = 40 + 29 + 19, 69**2 + (59**2 - 40**2)  # the last token of a row predicts nothing
    expected = shape.operations(tokens, 49, pairs, backward=True)
    assert speed.metrics(1).keys() == {"tokens_per_s", "tflops_per_s"}
    assert float(speed._tokens) == tokens
    assert float(speed._operations) == pytest.approx(expected, rel=0.01)
    # The whole packed row multiplies itself with this attention, and a mask leaves pairs of different rows out.
    visible = expected + 3 * shape.pair * (tokens**2 - pairs)
    assert torchs.get_total_flops() == pytest.approx(visible, rel=0.02)


def test_padding_does_not_count_and_a_pass_without_gradients_is_a_third() -> None:
    model = AutoModelForCausalLM.from_config(MODELS["llama"])
    speed = Speed(model, model.config, CPU, None)

    def operations(lengths: list[int], **more: torch.Tensor) -> float:
        speed.begin()
        model(**padded_inputs(model, rows(lengths), CPU), **more)
        return float(speed._operations)

    whole = operations([40, 10])
    assert whole == pytest.approx(operations([40]) + operations([10]))
    with torch.no_grad():
        assert operations([40, 10]) == pytest.approx(whole / 3)
    speed.begin()
    ids, mask = torch.ones((2, 40), dtype=torch.int64), torch.ones((2, 40), dtype=torch.int64)
    mask[1, 10:] = 0
    model(input_ids=ids, attention_mask=mask)
    assert float(speed._operations) == pytest.approx(whole)


def test_a_token_takes_some_of_the_experts() -> None:
    config = MixtralConfig(
        hidden_size=64,
        intermediate_size=176,
        num_key_value_heads=2,
        num_local_experts=8,
        num_experts_per_tok=2,
        **SIZES,
    )
    dense, experts = (shape_of(AutoModelForCausalLM.from_config(each), each).body for each in (MODELS["llama"], config))
    gates = 3 * 8 * 64
    assert experts == dense + 3 * 3 * 64 * 176 + gates


def test_a_model_without_a_config_has_no_speed() -> None:
    model = torch.nn.Linear(2, 2)
    speed = Speed(model, None, CPU, 1.0)
    speed.begin()
    model(torch.ones(1, 2))
    assert (speed.forwards, speed.metrics(1)) == (1, {})


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989), ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40S", 362), ("Tesla T4", 65), ("NVIDIA H20", None), ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_peak_of_a_gpu_is_that_of_its_name(name: str, peak: float | None) -> None:
    assert peak_of(name) == peak
