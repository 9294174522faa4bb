"""A trainer measures at its start whether it may pack rows: it says so, and changes nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every_model import config_of, model_of

from rolemesh.api.batch import Batch, Ragged
from rolemesh.api.workload import RankContext
from rolemesh_fsdp import FSDPOptions, FSDPWorkload, engine

LOSSES = "rolemesh_training.losses:"


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hybrid")
    model_of(config_of("qwen3_next"), folder).save_pretrained(folder)
    return folder


def rows(number: int = 4) -> Batch:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 60, 6)] * 2 + [rng.integers(3, 60, 8)] * (number - 2)
    completions = [rng.integers(3, 60, size=5 + row % 3) for row in range(number)]
    return Batch(
        {
            "prompt_ids": Ragged.from_rows(prompts, np.int32),
            "completion_ids": Ragged.from_rows(completions, np.int32),
            "logprobs": Ragged.from_rows([np.full(len(row), -4.0) for row in completions], np.float32),
            "advantage": np.resize(np.float32([1, -1]), number),
        }
    )


def started(monkeypatch: pytest.MonkeyPatch, model: Any, **options: Any) -> tuple[Any, RankContext, list[str]]:
    said: list[str] = []
    monkeypatch.setattr(RankContext, "warn", lambda _, text: said.append(text))
    given = {"model": str(model), "loss": f"{LOSSES}grpo", "lr": 0.01, **options}
    workload, context = FSDPWorkload(FSDPOptions.model_validate(given)), RankContext(seed=7)
    workload.setup(context)
    return workload, context, said


def test_a_hybrid_model_is_named_once_and_trained_on_its_own_log_probabilities(hybrid, monkeypatch):
    workload, context, said = started(monkeypatch, hybrid)
    assert len(said) == 1
    assert "a qwen3_next are padded and not packed: they give other results than separate rows" in said[0]
    assert "set pack to false in loss_options" in said[0]
    batch = rows()
    own = workload.logprobs(batch)["ref_logprobs"]
    single = [workload.logprobs(batch[row : row + 1])["ref_logprobs"][0] for row in range(4)]
    np.testing.assert_allclose(own.values, np.concatenate(single), atol=1e-5)
    workload.train(batch | {"logprobs": own})
    means = {name: total / count for name, (total, count) in context.port.means.items()}
    assert means["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert means["logprob_diff"] < 1e-5
    assert len(said) == 1


def test_packing_that_was_asked_for_is_not_dropped_without_a_word(hybrid, monkeypatch):
    for options in ({"loss_options": {"pack": True}}, {"frozen": True, "logprobs": {"pack": True}}):
        workload, _, said = started(monkeypatch, hybrid, **options)
        assert "padded and not packed" in said[0]
        batch = rows()
        own = workload.logprobs(batch)["ref_logprobs"]
        single = [workload.logprobs(batch[row : row + 1])["ref_logprobs"][0] for row in range(4)]
        np.testing.assert_allclose(own.values, np.concatenate(single), atol=1e-5)


def test_padding_that_was_asked_for_needs_no_warning(hybrid, monkeypatch):
    assert not started(monkeypatch, hybrid, loss_options={"pack": False})[2]
    assert not started(monkeypatch, hybrid, loss=f"{LOSSES}causal_lm")[2]


def test_the_measurement_changes_neither_the_state_nor_the_random_numbers(hybrid, monkeypatch):
    one = started(monkeypatch, hybrid)[0].snapshot()
    other = started(monkeypatch, hybrid, loss=f"{LOSSES}causal_lm")[0].snapshot()
    for name, shard in one["model"].items():
        assert np.array_equal(shard.data.numpy(), other["model"][name].data.numpy())
    assert all(np.array_equal(value, other["rng"][name]) for name, value in one["rng"].items())


def test_a_small_model_is_gathered_once_for_the_measurement_and_a_large_one_for_each_pass(hybrid, monkeypatch):
    told: list[bool] = []
    monkeypatch.setattr(engine, "reshard", lambda model, after_forward: told.append(after_forward))
    started(monkeypatch, hybrid)
    assert told == [False, True]
    monkeypatch.setattr(engine, "KEPT_BYTES", 1000)
    started(monkeypatch, hybrid)
    assert told == [False, True]
