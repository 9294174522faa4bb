"""Rows are packed where a model's results stay those of separate rows, and padded elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from every_model import KINDS, config_of, model_of

from rolemesh.errors import RolemeshError
from rolemesh_training.measured import Fitness, fitness, strictest
from rolemesh_training.packing import completion_logprobs, completion_values

CPU = torch.device("cpu")


def rows(*lengths: int) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 60, 5)] * 2 + [rng.integers(3, 60, 7)]
    return prompts, [rng.integers(3, 60, n) for n in lengths]


SHORT, LONG = rows(4, 6, 3), rows(30, 26, 40)


def alone(model: torch.nn.Module, prompts: list[Any], completions: list[Any]) -> torch.Tensor:
    found = []
    for prompt, completion in zip(prompts, completions, strict=True):
        ids = torch.tensor(np.concatenate([prompt, completion]))[None]
        logits = model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)[len(prompt) - 1 : -1]
        found.append(logits[torch.arange(len(completion)), torch.tensor(completion)])
    return torch.cat(found)


def flat(model: torch.nn.Module, total: torch.Tensor) -> torch.Tensor:
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(total, parameters, allow_unused=True)
    return torch.cat([(p * 0 if g is None else g).flatten().float() for g, p in zip(found, parameters, strict=True)])


def compare(model: torch.nn.Module, prompts: list[Any], completions: list[Any]) -> Fitness:
    """Fail unless rows of any trainer have the log-probabilities, and their gradient, of rows alone."""
    weights = torch.linspace(-1, 2, sum(map(len, completions)))
    wanted = alone(model, prompts, completions)
    assert torch.isfinite(wanted).all()
    gradient = flat(model, (wanted * weights).sum())
    found = completion_logprobs(model, prompts, completions, CPU)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    difference = (flat(model, (found * weights).sum()) - gradient).norm() / gradient.norm()
    assert difference < 1e-3
    return fitness(model, CPU)


@pytest.mark.parametrize(
    ("kind", "given", "why"),
    [
        ("llama", {}, ""),
        ("mixtral", {}, ""),
        ("gemma2", {}, ""),
        ("gpt_neo", {}, ""),
        ("qwen3_next", {}, "they give other results than separate rows"),
        ("lfm2", {}, "they give other results than separate rows"),
        ("roberta", {}, "they give other results than separate rows"),
        ("bart", {}, "it does not take position_ids"),
        ("mixtral", {"output_router_logits": True}, "its routers' loss"),
    ],
)
def test_a_model_is_packed_or_padded_as_it_is_right(kind, given, why, tmp_path):
    attention = "eager" if kind == "gpt_neo" else "sdpa"
    found = compare(model_of(config_of(kind, **given), tmp_path, attention), *SHORT)
    assert found.why.startswith(why) if why else not found.why


def test_a_window_within_the_measured_rows_and_one_beyond_them_change_nothing(tmp_path):
    for number, (kind, attention) in enumerate((("gpt_neo", "eager"), ("gemma2", "sdpa"), ("llama4_text", "eager"))):
        for window in (6, 20):
            model = model_of(config_of(kind, window), tmp_path / f"{number}-{window}", attention)
            compare(model, *LONG)


def test_half_precision_hides_no_state_and_finds_none_where_there_is_none(tmp_path):
    for kind, packed in (("qwen3_next", False), ("mamba", False), ("granitemoe", True), ("llama", True)):
        attention = "eager" if kind == "mamba" else "sdpa"
        model = model_of(config_of(kind), tmp_path / kind, attention, "bfloat16")
        assert (not fitness(model, CPU).why) == packed, kind


def test_a_model_that_padding_changes_is_refused_unless_rows_are_alone(tmp_path):
    model = model_of(config_of("xlnet"), tmp_path, "eager")
    prompts, completions = SHORT
    with pytest.raises(RolemeshError, match=r"may not be padded for a xlnet.*\n.*micro_batch_rows to 1"):
        completion_logprobs(model, prompts, completions, CPU)
    found = completion_logprobs(model, prompts[:1], completions[:1], CPU)
    torch.testing.assert_close(found, alone(model, prompts[:1], completions[:1]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", ["phi3", "llama"])
def test_rows_that_would_scale_the_positions_of_others_are_refused(kind, packed, tmp_path):
    """Up to 20 tokens a row has short factors of longrope, or the unscaled positions of dynamic NTK."""
    rope: dict[str, Any] = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    if kind == "phi3":
        factors = {"short_factor": [1.0] * 4, "long_factor": [4.0, 3.0, 8.0, 2.0]}
        rope |= {"rope_type": "longrope", "original_max_position_embeddings": 20, **factors}
    more = {"original_max_position_embeddings": 20} if kind == "phi3" else {"max_position_embeddings": 20}
    model = model_of(config_of(kind, rope_parameters=rope, **more), tmp_path)
    short, mixed, long = rows(4, 15, 13), rows(4, 16, 13), rows(16, 20, 14)
    for texts, right in ((short, True), (mixed, False), (long, kind == "phi3"), (short, True)):
        if right:
            found = completion_logprobs(model, *texts, CPU, packed=packed)
            torch.testing.assert_close(found, alone(model, *texts), rtol=1e-4, atol=1e-5)
        else:
            with pytest.raises(
                RolemeshError, match=r"of more than 20, changes the positions of .*\n.*max_length to 20"
            ):
                completion_logprobs(model, *texts, CPU, packed=packed)


def test_a_measurement_leaves_the_model_and_the_random_generators_as_they_were(tmp_path):
    model = model_of(config_of("gpt2", resid_pdrop=0.1), tmp_path).train()
    before = torch.get_rng_state()
    assert not fitness(model, CPU).why, "dropout would make each pass another one"
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_values_of_a_critic_are_padded_where_a_state_passes_over_the_rows(tmp_path):
    from transformers import AutoModelForTokenClassification

    for kind, packed in (("qwen3_next", False), ("llama", True)):
        torch.manual_seed(0)
        model = AutoModelForTokenClassification.from_config(config_of(kind, num_labels=1)).eval()
        prompts, completions = SHORT
        found = completion_values(model, prompts, completions, CPU)
        wanted = []
        for prompt, completion in zip(prompts, completions, strict=True):
            ids = torch.tensor(np.concatenate([prompt, completion]))[None]
            wanted.append(model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1, 0])
        torch.testing.assert_close(found, torch.cat(wanted), rtol=1e-4, atol=1e-5)
        assert (not fitness(model, CPU).why) == packed, kind


def test_all_ranks_do_what_the_strictest_of_them_may():
    one, other, third = Fitness("a"), Fitness("a", why="state"), Fitness("a", unpadded="no mask")
    assert strictest([one, other, third]) == Fitness("a", why="state", unpadded="no mask")
    assert strictest([one, one]) == one


TOO_LARGE = "no smaller one can be made, or it takes more than tokens"


@pytest.mark.soak
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "reformer"])
def test_every_causal_model_of_transformers_gets_what_its_rows_get_alone(kind, attention, tmp_path):
    """Rows are short, or longer than windows that the measurement passes, or than those that it does not."""
    for number, (window, texts) in enumerate(((None, SHORT), (None, LONG), (6, SHORT), (20, LONG))):
        try:
            model = model_of(config_of(kind, window), tmp_path / str(number), attention)
            alone(model, *texts)
        except Exception as error:
            pytest.skip(f"{TOO_LARGE} ({type(error).__name__}: {str(error)[:100]})")
        if fitness(model, CPU).unpadded:
            with pytest.raises(RolemeshError, match="may not be padded"):
                compare(model, *texts)
        else:
            compare(model, *texts)


@pytest.mark.more
def test_a_model_that_trains_only_on_rows_of_one_length_says_so(tmp_path):
    model = model_of(config_of("reformer"), tmp_path, "eager")
    torch.testing.assert_close(completion_logprobs(model, *SHORT, CPU), alone(model, *SHORT), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="padding your sequence length to 128"):
        completion_logprobs(model.train(), *SHORT, CPU)
