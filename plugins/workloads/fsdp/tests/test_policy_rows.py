"""A trainer's treatment of a rollout's rows around the loss: old log-probabilities, temperatures, lengths."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from rolemesh.api.batch import Batch, Ragged
from rolemesh.api.workload import RankContext, Workload
from rolemesh.errors import RolemeshError
from rolemesh_fsdp import FSDPOptions, FSDPWorkload

GRPO = "rolemesh_training.losses:grpo"


def started(model: Any, **options: Any) -> tuple[FSDPWorkload, RankContext]:
    workload = FSDPWorkload(FSDPOptions.model_validate({"model": str(model), "loss": GRPO, "lr": 0.05, **options}))
    context = RankContext()
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
    metrics = {name: total / count for name, (total, count) in context.port.means.items()}
    assert metrics["importance_weight"] == pytest.approx(weight, rel=1e-4)
    assert metrics["ratio"] != pytest.approx(1.0, abs=1e-3), "the second epoch is off policy"
    alone, context = started(tiny_model, micro_batch_rows=2, **capped)
    alone.train(batch)
    assert context.port.means["ratio"][0] == 1.0
    assert context.port.means["importance_weight"][0] == pytest.approx(weight, rel=1e-4)


def test_rows_that_are_too_long_are_left_out_of_the_update_counted_and_said_once(tiny_model: Any, texts: Any) -> None:
    rows = texts(0)

    def trained(batch: Batch, **options: Any) -> tuple[dict[str, Any], RankContext]:
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
    assert context.port.sums["rows_dropped"] == rows.rows - len(kept) + 1
    said = [text for text in context.port.records.values() if "dropped" in text]
    assert said == [
        "row 0 has 9 tokens of 6 at most, and is dropped by train; further ones are counted only (rows_dropped)"
    ]
    with pytest.raises(RolemeshError, match="row 0 has 9 tokens of 6 at most"):
        trained(rows, max_length=6, too_long="fail")


OF_TASK = {"train": "causal_lm", "logprobs": "causal_lm", "values": "value", "scores": "classification"}


def with_all_columns(batch: Batch) -> Batch:
    """Rows that any operator takes; the longest has 18 tokens."""
    both = zip(batch["prompt_ids"], batch["completion_ids"], strict=True)
    return batch | {
        "input_ids": Ragged.from_rows([np.concatenate(pair) for pair in both], np.int32),
        "index": np.arange(batch.rows),
    }


def test_every_operator_that_takes_rows_has_a_case_of_rows_that_are_too_long() -> None:
    found = {name for name, spec in Workload.operators.__func__(FSDPWorkload, None).items() if "batch" in spec.inputs}
    assert found == OF_TASK.keys()


@pytest.mark.parametrize("operator", OF_TASK)
def test_a_row_that_is_too_long_is_left_out_cut_or_refused_by_each_operator(
    tiny_model: Any, rollouts: Any, operator: str
) -> None:
    rows = with_all_columns(rollouts(0))
    lengths = [len(row) for row in rows["input_ids"]]
    long = [row for row, length in enumerate(lengths) if length > 17]

    def called(batch: Batch, **options: Any) -> tuple[Any, dict[str, float]]:
        loss = {} if operator == "train" else {"loss": "rolemesh_training.losses:causal_lm"}
        task = {"task": OF_TASK[operator], "max_length": 17, "init_seed": 1, **loss}
        workload, context = started(model, **task, **options)
        return getattr(workload, operator)(batch), dict(context.port.sums)

    model = padded(tiny_model)
    kept, counted = called(rows)
    cut, also_counted = called(rows, too_long="truncate")
    assert (counted["rows_dropped"], also_counted["rows_truncated"]) == (len(long), len(long))
    with pytest.raises(RolemeshError, match=f"index {long[0]} has {lengths[long[0]]} tokens of 17 at most"):
        called(rows, too_long="fail")
    if operator == "train":
        return
    assert [row for row in range(rows.rows) if row not in kept["index"]] == long
    assert cut["index"].tolist() == rows["index"].tolist()
    ids = "input_ids" if operator == "scores" else "completion_ids"
    assert [len(row) for row in cut["input_ids"]][long[0]] == (17 if operator == "scores" else lengths[long[0]])
    added = {"logprobs": "ref_logprobs"}.get(operator, operator)
    for batch in (kept, cut):
        alone, _ = called(Batch({n: c for n, c in batch.items() if n != added}))
        for place, row in enumerate(batch[added]):
            assert row.shape == ((2,) if operator == "scores" else (len(batch[ids][place]),))
            np.testing.assert_array_equal(row, alone[added][place])


def padded(model: Any) -> Any:
    """The model's folder, with a pad token in its config: a classifier needs one."""
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pad_token_id": 0}))
    return model


def test_the_scores_of_padded_rows_are_those_of_their_tokens(tiny_model: Any, texts: Any) -> None:
    workload, _ = started(
        padded(tiny_model), task="classification", init_seed=1, loss="rolemesh_training.losses:causal_lm"
    )
    rows = [*texts(0)["input_ids"]]
    ids, mask = np.full((len(rows), 12), 5), np.zeros((len(rows), 12), np.int64)
    for place, row in enumerate(rows):
        ids[place, 2 : 2 + len(row)], mask[place, 2 : 2 + len(row)] = row, 1
    found = workload.scores(Batch({"input_ids": ids, "attention_mask": mask}))["scores"]
    wanted = workload.scores(Batch({"input_ids": Ragged.from_rows(rows, np.int32)}))["scores"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_a_row_without_a_prompt_does_not_end_the_job(tiny_model: Any, rollouts: Any) -> None:
    batch = rollouts(0, (1.0, -1.0, 0.5, -0.5, -0.5, 2.0))
    prompts = Ragged.from_rows([[], *list(batch["prompt_ids"])[1:]], np.int32)
    workload, context = started(tiny_model)
    workload.train(batch | {"prompt_ids": prompts})
    assert context.port.sums["rows_dropped"] == 1
