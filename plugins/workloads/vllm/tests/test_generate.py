"""Rows in, rows out: what `generate` and `evaluate` return, and that it depends on rows and steps alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolemesh.api.batch import Batch, Ragged, concat
from rolemesh.errors import RolemeshError
from rolemesh_vllm import VLLMOptions, VLLMWorkload

GENERATED = {"prompt_ids", "completion_ids", "logprobs", "text", "group", "weight_version", "finish_reason"}
GENERATED |= {"sampling"}


def test_rows_are_prompts_times_samples_prompt_major_with_columns_carried(rollout: VLLMWorkload, prompts: Any) -> None:
    batch = prompts(2, first=5)
    out = rollout.generate(batch)
    assert out.rows == 6
    assert set(out) == GENERATED | {"messages", "index", "answer"}
    assert out["messages"] == [chat for chat in batch["messages"] for _ in range(3)]
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


@pytest.fixture
def too_long(rollout: VLLMWorkload, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Choose another `too_long` for the test, and forget earlier warnings."""

    def choose(how: str) -> None:
        monkeypatch.setattr(rollout.options, "too_long", how)
        monkeypatch.setattr(rollout, "_said", set())

    return choose


def three_prompts(*lengths: int) -> Batch:
    rows = [[5 + i for i in range(length)] for length in lengths]
    return Batch({"prompt_ids": Ragged.from_rows(rows, dtype=np.int32), "index": np.arange(40, 40 + len(lengths))})


def test_a_prompt_that_is_too_long_has_no_rows_and_is_counted_and_said_once(
    rollout: VLLMWorkload, too_long: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(rollout.ctx, "warn", said.append)
    too_long("drop")
    before = rollout.ctx.port.sums.get("prompts_dropped", 0)
    out = rollout.generate(three_prompts(3, 121, 4, 0))
    assert out["group"].tolist() == [40] * 3 + [42] * 3
    assert rollout.generate(three_prompts(121)).rows == 0
    assert rollout.ctx.port.sums["prompts_dropped"] - before == 3
    assert len(said) == 1
    assert "the prompt with index 41 has 121 tokens, and is dropped: with max_model_len 128 and max_tokens 8" in said[0]


def test_the_others_are_not_changed_by_one_that_is_dropped(rollout: VLLMWorkload, too_long: Any) -> None:
    too_long("drop")
    alone = rollout.generate(three_prompts(3, 7, 4))
    assert rollout.generate(three_prompts(3, 121, 4)) == concat([alone[:3], alone[6:]])


def test_a_truncated_prompt_keeps_its_end(rollout: VLLMWorkload, too_long: Any) -> None:
    too_long("truncate")
    out = rollout.evaluate(three_prompts(3, 123))
    assert [len(ids) for ids in out["prompt_ids"]] == [3, 120]
    assert out["prompt_ids"][1].tolist() == [5 + i for i in range(3, 123)]


def test_a_prompt_that_is_too_long_can_end_the_job(rollout: VLLMWorkload, too_long: Any) -> None:
    too_long("fail")
    with pytest.raises(RolemeshError, match=r"index 41 has 121 tokens; with .* may have 120\n.*engine.max_model_len"):
        rollout.generate(three_prompts(3, 121))


def test_rows_say_how_they_were_sampled(rollout: VLLMWorkload, prompts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rollout.generate(prompts(1))["sampling"] == [{"temperature": 1.0}] * 3
    changed = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "repetition_penalty": 1.5, "min_tokens": 2}
    for name, value in {**changed, "logit_bias": {7: 3.0}}.items():
        monkeypatch.setattr(rollout.options, name, value)
    assert rollout.generate(prompts(1))["sampling"] == [{**changed, "logit_bias": {7: 3.0}}] * 3
    greedy = {"temperature": 0.0, "repetition_penalty": 1.5, "min_tokens": 2, "logit_bias": {7: 3.0}}
    assert rollout.evaluate(prompts(1))["sampling"] == [greedy]


def test_a_text_is_opened_once_however_it_comes(tiny_model: Path) -> None:
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    from rolemesh_vllm.engine import Engine

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    opening = TemplateProcessing(single="<user> $A", special_tokens=[("<user>", 1)])
    tokenizer.backend_tokenizer.post_processor = opening
    tokenizer.bos_token = "<user>"
    engine = object.__new__(Engine)
    engine.tokenizer, engine.options = tokenizer, VLLMOptions(model=str(tiny_model))
    chat = Batch({"messages": [[{"role": "user", "content": "w1 w2"}]]})
    rendered = tokenizer.apply_chat_template(chat["messages"][0], tokenize=False, add_generation_prompt=True)
    assert engine.tokens(Batch({"prompt": [rendered, "w1 w2"]})) == [[1, 4, 5, 2], [1, 4, 5]]
    assert engine.tokens(chat) == [[1, 4, 5, 2]]
    engine.options = VLLMOptions(model=str(tiny_model), chat_template=False)
    assert engine.tokens(chat) == [[1, 4, 5]]


def test_tokens_and_lengths_are_reported(rollout: VLLMWorkload, prompts: Any) -> None:
    port = rollout.ctx.port
    port.sums.clear()
    port.means.clear()
    out = rollout.generate(prompts(2))
    tokens = len(out["completion_ids"].values)
    assert (port.sums["generated_tokens"], port.sums["prompt_tokens"]) == (tokens, len(out["prompt_ids"].values))
    assert port.means["completion_length"] == [tokens, out.rows]  # over rows: ranks have unequal numbers


def test_the_completions_that_are_done_are_reported_as_progress(
    rollout: VLLMWorkload, prompts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(rollout.ctx.port, "on_progress", lambda done, total: bool(told.append((done, total))))
    out = rollout.generate(prompts(2))
    assert told == sorted(told)
    assert len(told) >= max(map(len, out["completion_ids"])), "at least one report per token"
    assert told[-1] == (6, 6)
