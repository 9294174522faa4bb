"""A packed row gives each completion the log-probabilities and gradients that it has in a row of its own."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, MistralConfig, MistralForCausalLM

from rolemesh_training import attention
from rolemesh_training.packing import completion_logprobs, pack

CPU = torch.device("cpu")


def rows(kind: str) -> tuple[list[list[int]], list[list[int]]]:
    prefix = list(range(1, 14))
    match kind:
        case "shared prefix, groups":
            prompts = [[*prefix, 20], [*prefix, 20], [*prefix, 30, 31, 32], [*prefix, 30, 31, 32]]
            return prompts, [[5, 6, 7], [5, 9], [8], [10, 11, 12, 13]]
        case "groups that are not adjacent":
            return [[*prefix, 20], [*prefix, 30], [*prefix, 20]], [[5, 6], [7, 8], [9, 10]]
        case "one prompt":
            return [prefix, prefix], [[5, 6, 7], [5, 6, 8]]
        case "a prompt that is the prefix of another":
            return [prefix, [*prefix, 40, 41]], [[40, 41, 42], [5, 6]]
        case "nothing in common":
            return [[1, 2], [3, 4, 5], [6]], [[7, 8], [9], [10, 11, 12]]
        case "turns of one conversation":
            turns = [*prefix, 20, 21, 22, 23]
            return [turns, [*turns, 5, 6], turns, [*turns, 5, 7, 8]], [[5, 6, 9], [24, 25], [5, 7, 8, 9], [26]]
        case "an empty completion":
            return [[*prefix, 20], [*prefix, 21]], [[], [5, 6]]
    raise AssertionError(kind)


KINDS = [
    "shared prefix, groups",
    "groups that are not adjacent",
    "one prompt",
    "a prompt that is the prefix of another",
    "nothing in common",
    "turns of one conversation",
    "an empty completion",
]


def row_by_row(model, prompts, completions):
    found = []
    for prompt, completion in zip(prompts, completions, strict=True):
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[0]
        predicted = logits.log_softmax(-1)[len(prompt) - 1 : len(prompt) + len(completion) - 1]
        found.append(predicted[torch.arange(len(completion)), torch.tensor(completion, dtype=torch.int64)])
    return torch.cat(found)


@pytest.mark.parametrize("how", ["eager", "padded", "one block", "blocks of 3"])
@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_and_gradients_equal_those_of_single_rows(tiny_model, kind, how, monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation="eager" if how == "eager" else "sdpa")
    if "block" in how:
        model.set_attn_implementation(attention.NAME)
        monkeypatch.setattr(attention, "BLOCK", 3 if how == "blocks of 3" else attention.BLOCK)
    prompts, completions = rows(kind)
    weights = torch.linspace(-1, 2, sum(map(len, completions)))

    expected = row_by_row(model, prompts, completions)
    (expected * weights).sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    found = completion_logprobs(model, prompts, completions, CPU, packed=how != "padded")
    (found * weights).sum().backward()

    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-4, msg=name)


def test_temperature_divides_the_logits(tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    prompts, completions = rows("one prompt")
    hot = completion_logprobs(model, prompts, completions, CPU, temperature=2.0)
    logits = model(input_ids=torch.tensor([prompts[0] + completions[0]])).logits[0, len(prompts[0]) - 1]
    torch.testing.assert_close(hot[0], (logits / 2).log_softmax(-1)[completions[0][0]], rtol=1e-5, atol=1e-5)


def test_common_tokens_are_laid_out_once_and_last_tokens_not_at_all():
    prompts, completions = rows("shared prefix, groups")
    layout = pack(prompts, completions)
    assert len(layout.input_ids) == 13 + 1 + len([5, 6]) + 3 + len([10, 11, 12])
    assert layout.targets.tolist() == [token for completion in completions for token in completion]


def test_samples_of_one_conversation_share_their_turns():
    prompts, completions = rows("turns of one conversation")
    layout = pack(prompts, completions)
    assert len(layout.input_ids) == 17 + len([5, 6, 24]) + len([7, 8])
    assert len(layout.targets) == 10


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_sees_its_own_row_and_nothing_else(kind):
    prompts, completions = rows(kind)
    layout = pack(prompts, completions)
    texts = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
    for visible in layout.mask():
        seen = layout.input_ids[visible].tolist()
        assert any(text[: len(seen)] == seen for text in texts)
        assert layout.positions[visible].tolist() == list(range(len(seen)))
    places = layout.keep[layout.source]
    found = [[*layout.input_ids[layout.mask()[at]], token] for at, token in zip(places, layout.targets, strict=True)]
    wanted = [
        text[: end + 1] for prompt, text in zip(prompts, texts, strict=True) for end in range(len(prompt), len(text))
    ]
    assert found == wanted


@pytest.mark.parametrize("how", ["one block", "blocks of 3", "padded"])
def test_only_counted_tokens_have_a_result(tiny_model, how, monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.set_attn_implementation(attention.NAME)
    monkeypatch.setattr(attention, "BLOCK", 3 if how == "blocks of 3" else attention.BLOCK)
    prompts, completions = rows("turns of one conversation")
    counted = [np.array(mask, dtype=np.bool_) for mask in ([1, 0, 1], [0, 0], [0, 1, 0, 0], [1])]
    temperature = np.array([1.0, 2.0, 0.5, 2.0], dtype=np.float32)
    every, found = (
        completion_logprobs(
            model, prompts, completions, CPU, temperature=temperature, packed=how != "padded", counted=mask
        ).detach()
        for mask in (None, counted)
    )
    torch.testing.assert_close(found, every[torch.from_numpy(np.concatenate(counted))], rtol=1e-5, atol=1e-5)
    if how != "padded":
        assert len(pack(prompts, completions, counted).input_ids) == 17 + len(
            [5, 6, 7, 8]
        )  # no token after the last counted one


@pytest.mark.parametrize("prompt", [1, *(pytest.param(n, marks=pytest.mark.soak) for n in (2, 3))])
def test_packed_and_padded_rows_agree_for_all_short_lengths(tiny_model, prompt):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.set_attn_implementation(attention.NAME)
    ids = np.random.default_rng(prompt).integers(0, 61, size=(4, 3))
    for other, *lengths in itertools.product((1, 3), (0, 1), (0, 2), (0, 1, 3)):
        prompts = [ids[0][:prompt], ids[0][:prompt], [*ids[0][: other - 1], 7]]
        completions = [row[:length] for row, length in zip(ids[1:], lengths, strict=True)]
        found, wanted = (
            completion_logprobs(model, prompts, completions, CPU, packed=p).detach() for p in (True, False)
        )
        assert len(found) == sum(lengths)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("completion", [[], [3], [3, 4]])
def test_an_empty_prompt_is_refused(tiny_model, completion, packed):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    with pytest.raises(ValueError, match="the prompt of row 1 is empty"):
        completion_logprobs(model, [[1], []], [[2], completion], CPU, packed=packed)


def windowed(window: int) -> MistralForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = MistralConfig(vocab_size=61, num_key_value_heads=2, sliding_window=window, initializer_range=0.2, **sizes)
    model = MistralForCausalLM(config).eval()
    model.set_attn_implementation(attention.NAME)
    return model


def test_rows_longer_than_a_window_are_padded_and_shorter_ones_packed_into_a_longer_row():
    model = windowed(20)
    for end, packed in ((20, True), (24, False)):
        prompts, completions = [[1, 2], [1, 2], [3, 4]], [[*range(2, end - 1)], [*range(7, end + 2)], [5]]
        before = attention.packed_calls()
        found = completion_logprobs(model, prompts, completions, CPU).detach()
        wanted = row_by_row(model, prompts, completions).detach()
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        calls = attention.packed_calls() - before - (end == 20)  # the first time measures, too
        assert calls == packed, "the packed row of short rows has more tokens than the window"
