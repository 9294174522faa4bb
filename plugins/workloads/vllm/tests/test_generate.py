"""Rows in, rows out: what `generate` and `evaluate` return, and that it depends on rows and steps alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rolemesh.api.batch import Batch, Ragged, concat
from rolemesh_vllm import VLLMWorkload

GENERATED = {"prompt_ids", "completion_ids", "logprobs", "text", "group", "weight_version", "finish_reason"}


def test_rows_are_prompts_times_samples_prompt_major_with_columns_carried(rollout: VLLMWorkload, prompts: Any) -> None:
    batch = prompts(2, first=5)
    out = rollout.generate(batch)
    assert out.rows == 6
    assert set(out) == GENERATED | {"index", "answer"}
    assert out["answer"] == ["a0"] * 3 + ["a1"] * 3
    assert out["group"].tolist() == [5, 5, 5, 6, 6, 6]
    assert out["group"].dtype == out["weight_version"].dtype == np.int64
    assert out["prompt_ids"].values.dtype == out["completion_ids"].values.dtype == np.int32
    assert out["logprobs"].values.dtype == np.float32
    assert np.array_equal(out["logprobs"].offsets, out["completion_ids"].offsets)
    assert [len(ids) for ids in out["prompt_ids"]] == [42, 42, 42, 43, 43, 43]
    for ids, reason in zip(out["completion_ids"], out["finish_reason"], strict=True):
        assert reason == ("stop" if ids[-1] == 0 else "length")
        assert len(ids) <= 8


def test_samples_of_a_prompt_differ_and_change_with_the_step(rollout: VLLMWorkload, prompts: Any) -> None:
    first = rollout.generate(prompts(1))
    assert len({tuple(ids) for ids in first["completion_ids"]}) > 1
    rollout.ctx.step = 1
    second = rollout.generate(prompts(1))
    rollout.ctx.step = 0
    assert second != first


def test_a_step_is_bitwise_repeatable_in_any_order_and_split(rollout: VLLMWorkload, prompts: Any) -> None:
    batch = prompts(6)
    whole = rollout.generate(batch)
    assert rollout.generate(batch) == whole
    parts = [rollout.generate(batch[low:high]) for low, high in ((4, 6), (1, 4), (0, 1))]
    assert concat(list(reversed(parts))) == whole


def test_prompt_ids_messages_and_text_are_the_same_prompt(rollout: VLLMWorkload, prompts: Any) -> None:
    batch = prompts(2)
    greedy = rollout.evaluate(batch)
    ids = Batch({"prompt_ids": greedy["prompt_ids"], "index": batch["index"]})
    text = [f"<user> {m[0]['content']} <assistant>" for m in batch["messages"]]
    for other in (ids, Batch({"prompt": text, "index": batch["index"]})):
        assert rollout.evaluate(other)["completion_ids"] == greedy["completion_ids"]


def test_zero_prompts_give_zero_rows_of_the_same_columns(rollout: VLLMWorkload, prompts: Any) -> None:
    full = rollout.generate(prompts(1))
    for empty in (rollout.generate(prompts(1)[0:0]), rollout.evaluate(prompts(1)[0:0])):
        assert empty.rows == 0
        assert set(empty) == set(full)
        for name in ("prompt_ids", "completion_ids", "logprobs"):
            assert isinstance(empty[name], Ragged)
            assert empty[name].values.dtype == full[name].values.dtype


def test_logprobs_and_greedy_tokens_are_the_huggingface_models(
    rollout: VLLMWorkload, prompts: Any, new_weights: Any, greedy: Any
) -> None:
    import torch

    model, weights = new_weights(seed=11, version=1)
    rollout.load_weights(weights)
    for out in (rollout.generate(prompts(3)), rollout.evaluate(prompts(3))):
        for prompt, ids, logprobs in zip(out["prompt_ids"], out["completion_ids"], out["logprobs"], strict=True):
            tokens = torch.tensor(np.concatenate([prompt, ids]), dtype=torch.int64)
            with torch.no_grad():
                table = model(tokens[None]).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
            expected = table.gather(-1, tokens[len(prompt) :, None])[:, 0].numpy()
            np.testing.assert_allclose(logprobs, expected, atol=1e-4)
    assert [row.tolist() for row in out["completion_ids"]] == [greedy(model, row, 8) for row in out["prompt_ids"]]


def test_a_prompt_without_room_for_the_completion_is_refused(rollout: VLLMWorkload) -> None:
    long = Batch({"prompt_ids": Ragged.from_rows([[5] * 121], dtype=np.int32), "index": np.zeros(1, np.int64)})
    with pytest.raises(ValueError, match=r"prompt 0 has 121 tokens.*it must have 1 to 120: set engine.max_model_len"):
        rollout.generate(long)


def test_tokens_and_lengths_are_reported(rollout: VLLMWorkload, prompts: Any) -> None:
    before = dict(rollout.ctx._sums)
    out = rollout.generate(prompts(2))
    assert rollout.ctx._sums["generated_tokens"] - before["generated_tokens"] == len(out["completion_ids"].values)
    assert rollout.ctx._sums["prompt_tokens"] - before["prompt_tokens"] == len(out["prompt_ids"].values)
    assert rollout.ctx._means["completion_length"][1] > 0
