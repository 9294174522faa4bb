"""What a trainer makes of a rollout's rows before and around the loss: old log-probabilities, temperatures, lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rolemesh.api.batch import Batch, Ragged
from rolemesh.api.workload import RankContext
from rolemesh.errors import RolemeshError
from rolemesh_fsdp import FSDPOptions, FSDPWorkload

GRPO = "rolemesh_training.losses:grpo"


def started(model: Any, **options: Any) -> tuple[FSDPWorkload, RankContext[Any]]:
    workload = FSDPWorkload()
    context = RankContext(
        options=FSDPOptions.model_validate({"model": str(model), "loss": GRPO, "lr": 0.05, **options})
    )
    workload.setup(context)
    return workload, context


def test_every_update_of_a_batch_compares_with_the_policy_before_the_first(tiny_model: Any, rollouts: Any) -> None:
    batch = rollouts(0, (1.0, -1.0, 0.5, -0.5, -0.5, 2.0))
    batch = batch | {"sampling": [{"temperature": 0.5, "top_p": 0.9}] * batch.rows}
    capped = {"loss_options": {"importance_sampling_cap": 1.5}}
    workload, context = started(tiny_model, epochs=2, micro_batch_rows=2, **capped)
    said = workload.logprobs(batch)
    assert said["ref_temperature"].tolist() == [0.5] * batch.rows
    weight = np.minimum(np.exp(said["ref_logprobs"].values - batch["logprobs"].values), 1.5).mean()
    workload.train(batch)
    metrics = {name: total / count for name, (total, count) in context._means.items()}
    assert metrics["importance_weight"] == pytest.approx(weight, rel=1e-4)
    assert metrics["ratio"] != pytest.approx(1.0, abs=1e-3), "the second epoch is off policy"
    alone, context = started(tiny_model, micro_batch_rows=2, **capped)
    alone.train(batch)
    assert context._means["ratio"][0] == 1.0
    assert context._means["importance_weight"][0] == pytest.approx(weight, rel=1e-4)


def test_rows_that_are_too_long_are_left_out_of_the_update_counted_and_said_once(tiny_model: Any, texts: Any) -> None:
    rows = texts(0)

    def trained(batch: Batch, **options: Any) -> tuple[dict[str, Any], RankContext[Any]]:
        workload, context = started(tiny_model, loss="rolemesh_training.losses:causal_lm", **options)
        workload.train(batch)
        workload.train(rows[:1])
        return {name: shard.data.clone() for name, shard in workload.snapshot()["model"].items()}, context

    found, context = trained(rows, max_length=6)
    kept = [row for row in range(rows.rows) if len(rows["input_ids"][row]) <= 6]
    short = {n: Ragged.from_rows([c[row] for row in kept], c.values.dtype) for n, c in rows.items()}
    wanted, _ = trained(Batch(short), max_length=6)
    assert 0 < len(kept) < rows.rows
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    assert context._sums["rows_dropped"] == rows.rows - len(kept) + 1
    said = [text for text in context._records.values() if "dropped" in text]
    assert said == ["row 0 has 9 tokens of 6 at most, and is dropped; further ones are counted only (rows_dropped)"]
    with pytest.raises(RolemeshError, match="row 0 has 9 tokens of 6 at most"):
        trained(rows, max_length=6, too_long="fail")


def test_a_row_without_a_prompt_does_not_end_the_job(tiny_model: Any, rollouts: Any) -> None:
    batch = rollouts(0, (1.0, -1.0, 0.5, -0.5, -0.5, 2.0))
    prompts = Ragged.from_rows([[], *list(batch["prompt_ids"])[1:]], np.int32)
    workload, context = started(tiny_model)
    workload.train(batch | {"prompt_ids": prompts})
    assert context._sums["rows_dropped"] == 1
