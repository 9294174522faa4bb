"""A policy loss and the sampling of its rows. The loss computes alike, corrects, or refuses and names both settings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from rolemesh.api.batch import Batch, Ragged, concat
from rolemesh.errors import RolemeshError
from rolemesh_training import LossContext
from rolemesh_training.losses import grpo, ppo
from rolemesh_training.model import without_dropout
from rolemesh_training.packing import completion_logprobs
from rolemesh_training.sampling import reshaping

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model).eval()


def context(**options):
    return LossContext(CPU, step=0, version=0, options=options)


def sampled(model, sampling, rows=12, tokens=5, advantage=1.0, first=0):
    """Completions that are drawn from `model` as `sampling` says, with the log-probabilities of that distribution."""
    generator = torch.Generator().manual_seed(first)
    prompts, completions, logprobs = [], [], []
    for row in range(first, first + rows):
        ids, said = [3 + row % 50, 4, 5], []
        for _ in range(tokens):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids])).logits[0, -1] / sampling.get("temperature", 1.0)
            order = logits.argsort(descending=True)
            beyond = logits[order].softmax(-1).cumsum(-1) - logits[order].softmax(-1) >= sampling.get("top_p", 1.0)
            logits[order[beyond]] = -torch.inf
            ids.append(int(torch.multinomial(logits.softmax(-1), 1, generator=generator)))
            said.append(float(logits.log_softmax(-1)[ids[-1]]))
        prompts.append(ids[:3])
        completions.append(ids[3:])
        logprobs.append(said)
    return Batch(
        {
            "prompt_ids": Ragged.from_rows(prompts, np.int32),
            "completion_ids": Ragged.from_rows(completions, np.int32),
            "logprobs": Ragged.from_rows(logprobs, np.float32),
            "advantage": np.full(rows, advantage, dtype=np.float32),
            "index": np.arange(first, first + rows),
            "sampling": [sampling] * rows,
        }
    )


def mean(output, name):
    total, weight = output.metrics[name]
    return float(total) / float(weight)


@pytest.mark.parametrize("packed", [True, False])
def test_rows_of_several_temperatures_are_each_computed_at_their_own(model, packed):
    batch = concat([sampled(model, {"temperature": t}, rows=4, first=10 * n) for n, t in enumerate((0.5, 1.0, 2.0))])
    output = grpo(model, batch, context(pack=packed))
    assert mean(output, "ratio") == pytest.approx(1.0, abs=1e-4)
    assert mean(output, "logprob_diff") < 1e-4


def test_rows_go_on_saying_how_they_were_sampled_when_they_are_cut_and_joined(model):
    halves = [sampled(model, {"temperature": t}, rows=2) for t in (0.5, 1.0)]
    cut = concat(halves)[1:3]
    assert cut["sampling"] == [{"temperature": 0.5}, {"temperature": 1.0}]


def test_another_temperature_than_the_rows_is_refused_with_both_and_the_row(model):
    batch = sampled(model, {"temperature": 0.5}, rows=2, first=7)
    with pytest.raises(RolemeshError, match=r"index 7: .* temperature 0.5, the loss computes at temperature 1.0"):
        grpo(model, batch, context(temperature=1.0))


@pytest.mark.parametrize(
    "sampling",
    [
        {"top_p": 0.7},
        {"top_k": 5},
        {"min_p": 0.1},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"logit_bias": {3: 1.0}},
        {"min_tokens": 2},
        {"one_of_tomorrow": 0.3},
    ],
    ids=lambda sampling: next(iter(sampling)),
)
def test_sampling_that_reshapes_the_distribution_is_refused_without_a_correction(model, sampling):
    batch = sampled(model, {"temperature": 1.0}, rows=2) | {"sampling": [sampling] * 2}
    name, value = next(iter(sampling.items()))
    for loss in (grpo, ppo):
        batch = batch | {"advantages": batch["logprobs"]}
        with pytest.raises(RolemeshError) as caught:
            loss(model, batch, context())
        assert f"{name} {value}" in caught.value.what
        assert "importance_sampling_cap" in caught.value.remedy
        loss(model, batch, context(importance_sampling_cap=2.0))


def test_sampling_that_leaves_the_distribution_alone_is_accepted():
    plain = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "logit_bias": {}}
    assert reshaping(plain | {"top_k": 0, "min_tokens": 0, "bad_words": None}) == {}


def test_greedy_completions_have_no_policy_gradient(model):
    batch = sampled(model, {"temperature": 1.0}, rows=2) | {"sampling": [{"temperature": 0.0}] * 2}
    for options in ({}, {"importance_sampling_cap": 2.0}):
        with pytest.raises(RolemeshError, match="greedy"):
            grpo(model, batch, context(**options))


def test_a_reference_at_another_temperature_is_refused_with_both(model):
    batch = sampled(model, {"temperature": 0.5}, rows=2)
    batch = batch | {"ref_logprobs": batch["logprobs"], "ref_temperature": np.float32([1.0, 1.0])}
    with pytest.raises(RolemeshError, match=r"ref_logprobs .* temperature 1.0, the loss computes at temperature 0.5"):
        grpo(model, batch, context(kl_coef=0.1))
    same = batch | {"ref_temperature": np.float32([0.5, 0.5])}
    assert float(grpo(model, same, context(kl_coef=0.1)).metrics["kl"][0]) == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_with_a_correction_on_policy_ratios_of_a_nucleus_are_one(model, advantage):
    batch = sampled(model, {"temperature": 1.0, "top_p": 0.7}, advantage=advantage)
    output = grpo(model, batch, context(importance_sampling_cap=2.0))
    assert mean(output, "ratio") == 1.0
    assert mean(output, "clip_fraction") == 0.0
    assert 0.5 < mean(output, "importance_weight") < 1.0


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_the_correction_is_the_capped_weight_times_the_clipped_objective(model, ratio):
    batch = sampled(model, {"temperature": 0.7}, rows=6, advantage=-1.0)
    flat, offsets = batch["logprobs"].values, batch["logprobs"].offsets
    rng = np.random.default_rng(0)
    old = flat + rng.normal(scale=0.3, size=flat.shape).astype(np.float32)
    sampler = flat + rng.normal(scale=0.9, size=flat.shape).astype(np.float32)
    batch = batch | {"old_logprobs": Ragged(old, offsets), "logprobs": Ragged(sampler, offsets)}
    output = grpo(model, batch, context(importance_sampling_cap=1.5, ratio=ratio, aggregation="token_mean"))
    new = completion_logprobs(model, batch["prompt_ids"], batch["completion_ids"], CPU, temperature=0.7, packed=False)
    log_ratio = new - torch.from_numpy(old)
    if ratio == "sequence":
        log_ratio = torch.cat([part.mean().expand(len(part)) for part in log_ratio.split(5)])
    weight = (torch.from_numpy(old) - torch.from_numpy(sampler)).exp().clamp(max=1.5)
    expected = (weight * -torch.minimum(-log_ratio.exp(), -log_ratio.exp().clamp(0.8, 1.2))).sum()
    torch.testing.assert_close(output.total, expected, rtol=1e-4, atol=1e-4)
    assert 0 < mean(output, "importance_capped") < 1


def test_dropout_can_be_taken_out_of_a_model_that_trains():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=2)).train()
    ids = torch.tensor([[1, 2, 3, 4]])
    assert not torch.equal(model(ids).logits, model(ids).logits)
    without_dropout(model)
    assert model.training
    trained = model(ids).logits
    assert torch.equal(trained, model(ids).logits)
    assert torch.equal(trained, model.eval()(ids).logits)
