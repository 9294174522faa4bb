"""Several ranks on gloo against one rank: same update, same weights, same continuation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trainer_group

from rolemesh.api.batch import Ragged
from rolemesh_runtime.digest import digest

GRPO = {"loss": "rolemesh_training.losses:grpo"}


def options(model: Path, **more: Any) -> dict[str, Any]:
    return {"model": str(model), "lr": 1e-2, "warmup_steps": 2, "weight_decay": 0.1, **more}


def assert_close(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, rtol=1e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("shares", [[3, 2], [4, 1], [5, 0], [0, 2, 3]], ids=str)
def test_ranks_with_uneven_rows_take_the_step_of_one_rank(group, tiny_model, texts, shares):
    batches = [texts(seed) for seed in range(3)]
    alone = group(trainer_group.train, 1, options(tiny_model), batches, [5])
    together = group(trainer_group.train, len(shares), options(tiny_model), batches, shares)
    assert_close(trainer_group.assembled(alone), trainer_group.assembled(together))
    for result in together:
        assert result["metrics"] == pytest.approx(alone[0]["metrics"], rel=1e-4)
    assert sum(r["counts"]["trained_tokens"] for r in together) == alone[0]["counts"]["trained_tokens"]


def test_a_rank_whose_rows_are_all_too_long_goes_along_with_the_others(group, tiny_model, texts):
    batches = [texts(seed) for seed in range(3)]
    given = options(tiny_model, max_length=8)
    alone = group(trainer_group.train, 1, given, batches, [5])
    together = group(trainer_group.train, 2, given, batches, [1, 4])
    assert_close(trainer_group.assembled(alone), trainer_group.assembled(together))
    assert [result["counts"].get("rows_dropped", 0) for result in (*alone, *together)] == [3, 3, 0]


def test_a_rank_whose_rows_are_all_too_long_goes_along_in_a_forward_pass(group, tiny_model, rollouts):
    given = options(tiny_model, max_length=16, micro_batch_rows=1)
    alone = group(trainer_group.logprobs, 1, given, rollouts(0), [6])
    together = group(trainer_group.logprobs, 2, given, rollouts(0), [4, 2])
    left = group(trainer_group.logprobs, 2, given, rollouts(0), [2, 4])
    for parts in (together, left):
        assert np.concatenate([part.values for part in parts]) == pytest.approx(alone[0].values, rel=1e-5)


def test_micro_batches_accumulate_to_the_step_of_the_whole_batch(group, tiny_model, texts):
    batches = [texts(seed) for seed in range(3)]
    whole = group(trainer_group.train, 1, options(tiny_model), batches, [5])
    parts = group(trainer_group.train, 2, options(tiny_model, micro_batch_rows=1), batches, [4, 1])
    assert_close(trainer_group.assembled(whole), trainer_group.assembled(parts))


@pytest.mark.parametrize("shares", [[3, 2], [2, 2, 1]], ids=str)
def test_memory_that_was_given_back_between_steps_changes_no_bit(group, tiny_model, texts, shares):
    batches = [texts(seed) for seed in range(3)]
    plain = group(trainer_group.train, len(shares), options(tiny_model), batches, shares)
    paused = group(trainer_group.train_with_pauses, len(shares), options(tiny_model), batches, shares)
    assert [digest(rank["state"]) for rank in plain] == [digest(rank["state"]) for rank in paused]


@pytest.mark.parametrize("more", [{"reshard_after_forward": False}, {"gradient_checkpointing": True}], ids=str)
def test_memory_options_do_not_change_the_step(group, tiny_model, texts, more):
    batches = [texts(seed) for seed in range(2)]
    plain = group(trainer_group.train, 2, options(tiny_model), batches, [3, 2])
    other = group(trainer_group.train, 2, options(tiny_model, **more), batches, [3, 2])
    assert_close(trainer_group.assembled(plain), trainer_group.assembled(other))


def test_mini_batches_and_epochs_are_an_update_each(group, tiny_model, texts):
    batch, whole = texts(0), options(tiny_model)
    halves = [batch[:2], batch[2:]]
    several = group(trainer_group.train, 1, whole, [*halves, *halves], [5])
    at_once = group(trainer_group.train, 1, options(tiny_model, mini_batches=2, epochs=2), [batch], [5])
    one, other = trainer_group.assembled(several), trainer_group.assembled(at_once)
    assert (one.pop("__version__"), other.pop("__version__")) == (4, 1)
    assert all((one[name] == other[name]).all() for name in one)
    assert at_once[0]["state"]["updates"] == 4


def test_grpo_over_ranks_takes_the_step_of_one_rank(group, tiny_model, rollouts):
    # Rank 1 holds the group without advantage only, and a micro-batch of two rows has no advantage on any rank.
    batches = [rollouts(seed, (1.0, -1.0, 0.5, -0.5, 0.0, 0.0)) for seed in range(3)]
    alone = group(trainer_group.train, 1, options(tiny_model, **GRPO), batches, [6])
    together = group(trainer_group.train, 2, options(tiny_model, micro_batch_rows=2, **GRPO), batches, [4, 2])
    assert_close(trainer_group.assembled(alone), trainer_group.assembled(together))
    assert together[0]["metrics"]["loss"] == pytest.approx(alone[0]["metrics"]["loss"], rel=1e-3)
    assert together[0]["metrics"]["staleness"] == together[1]["metrics"]["staleness"] == 2.0


def test_a_step_without_any_advantage_changes_no_weight_but_counts_and_reports(group, tiny_model, rollouts):
    dead = rollouts(0, (0.0,) * 6)
    before = group(trainer_group.train, 2, options(tiny_model, **GRPO), [], [3, 3])
    after = group(trainer_group.train, 2, options(tiny_model, **GRPO), [dead], [3, 3])
    start, end = trainer_group.assembled(before), trainer_group.assembled(after)
    assert start.pop("__version__").tolist() == [0]
    assert end.pop("__version__").tolist() == [1]
    assert all((start[name] == end[name]).all() for name in start)
    metrics = after[0]["metrics"]
    assert metrics["logprob_diff"] > 0
    assert "loss" not in metrics


def test_forward_passes_between_updates_see_the_updated_weights(group, tiny_model, rollouts):
    # The micro-batches without advantage run forward but not backward, which would leave gathered parameters behind.
    batches = [rollouts(seed, (1.0, -1.0, 0.0, 0.0, 0.5, 0.0)) for seed in range(3)]
    more = {"micro_batch_rows": 1, "reshard_after_forward": False, **GRPO}
    scenario = (trainer_group.logprobs_after, batches, rollouts(9))
    alone = group(scenario[0], 1, options(tiny_model, **GRPO), *scenario[1:], [6])
    together = group(scenario[0], 2, options(tiny_model, **more), *scenario[1:], [3, 3])
    found = np.concatenate([part.values for part in together])
    np.testing.assert_allclose(found, alone[0].values, atol=2e-4)


def test_logprobs_keep_the_rows_when_a_rank_has_none(group, tiny_model, rollouts):
    batch = rollouts(4)
    alone = group(trainer_group.logprobs, 1, options(tiny_model), batch, [6])[0]
    full, empty = group(trainer_group.logprobs, 2, options(tiny_model), batch, [6, 0])
    assert len(empty) == 0
    assert full.offsets.tolist() == alone.offsets.tolist() == batch["completion_ids"].offsets.tolist()
    assert full.values.dtype == np.float32
    np.testing.assert_allclose(full.values, alone.values, atol=1e-5)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_weights_assemble_to_the_hugging_face_state_dict(group, tiny_model, world_size):
    from transformers import AutoModelForCausalLM

    results = group(trainer_group.train, world_size, options(tiny_model), [], [0] * world_size)
    found = trainer_group.assembled(results)
    assert found.pop("__version__").tolist() == [0]
    expected = AutoModelForCausalLM.from_pretrained(tiny_model).state_dict()
    assert found.keys() == expected.keys()
    assert (found["lm_head.weight"] == found["model.embed_tokens.weight"]).all()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value.numpy(), err_msg=name)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_frozen_role_answers_and_keeps_nothing(group, tiny_model, rollouts, world_size):
    shares = [6] if world_size == 1 else [4, 2]
    given, batch = options(tiny_model, **GRPO), rollouts(0)
    trained = group(trainer_group.logprobs, world_size, given, batch, shares)
    frozen = group(trainer_group.logprobs, world_size, {**given, "frozen": True}, batch, shares)
    assert [part.values.tolist() for part in trained] == [part.values.tolist() for part in frozen]
    assert group(trainer_group.state_of, world_size, {**given, "frozen": True}) == [None] * world_size
    with pytest.raises(AssertionError, match="is frozen, and cannot be trained"):
        group(trainer_group.train, world_size, {**given, "frozen": True}, [batch], shares)


@pytest.fixture
def model_with_dropout(tiny_model: Path, tmp_path: Path) -> Path:
    """`tiny_model`, but what a step does depends on torch's RNG state."""
    folder = shutil.copytree(tiny_model, tmp_path / "dropout")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.3}))
    return folder


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_restored_group_continues_bit_for_bit(group, model_with_dropout, texts, world_size):
    batches, shares = [texts(seed) for seed in range(4)], [3, 2] if world_size == 2 else [5]
    straight = group(trainer_group.train_and_return_to, world_size, options(model_with_dropout), batches, shares, 2)
    early = [result["early"] for result in straight]
    resumed = group(trainer_group.continue_from, world_size, options(model_with_dropout), early, batches[2:], shares)
    for one, other in zip(straight, resumed, strict=True):
        assert early[0]["version"] == 2
        assert digest(one["state"]) == digest(other["state"]) != digest(one["early"])


def test_two_runs_with_one_seed_end_with_equal_states(group, tiny_model, rollouts):
    batches = [rollouts(seed) for seed in range(2)]
    runs = [
        group(trainer_group.train, 2, options(tiny_model, init="random", **GRPO), batches, [3, 3]) for _ in range(2)
    ]
    assert [digest(r["state"]) for r in runs[0]] == [digest(r["state"]) for r in runs[1]]
    assert list(runs[0][0]["state"]) == list(runs[1][0]["state"])


def test_bfloat16_computes_in_half_and_keeps_float32_state(group, tiny_model, texts):
    batches = [texts(seed) for seed in range(2)]
    exact = group(trainer_group.train, 1, options(tiny_model), batches, [5])
    for world_size, shares in ((1, [5]), (2, [3, 2])):
        half = group(trainer_group.train, world_size, options(tiny_model, dtype="bfloat16"), batches, shares)
        assert half[0]["state"]["model"]["model.norm.weight"].data.dtype == np.float32
        assert half[0]["metrics"]["loss"] == pytest.approx(exact[0]["metrics"]["loss"], rel=0.05)
        assert half[0]["metrics"]["loss"] != exact[0]["metrics"]["loss"]


@pytest.mark.parametrize("lengths", [[0, 3], [5_000, 3], [4_000, 4_096], [100_000, 200_000]])
def test_ranks_gather_values_of_any_size(group, tiny_model, lengths):
    assert group(trainer_group.gathered, 2, {"model": str(tiny_model)}, lengths) == [lengths, lengths]


def test_a_batch_without_rows_on_any_rank_changes_nothing(group, tiny_model, texts):
    trainer_group.assert_no_rows_change_nothing(group, {"model": str(tiny_model), "lr": 1e-2}, [texts(0), texts(1)])


def versions(batch: Any, lag: list[int], version: int) -> Any:
    """The batch with the version of each token: each row's first token is older by its `lag`, the others are new."""
    rows = [np.full(len(ids), version, dtype=np.int64) for ids in batch["completion_ids"]]
    for row, age in zip(rows, lag, strict=True):
        row[0] -= age
    return batch | {"weight_versions": Ragged.from_rows(rows, np.int64)}


def test_rows_with_older_tokens_than_allowed_are_dropped_and_counted(group, tiny_model, rollouts):
    every = (1.0, -1.0, 0.5, -0.5, 2.0, 1.0)
    old = [versions(rollouts(step, every), [0, 2, 0, 3, 1, 0] if step > 2 else [0] * 6, step) for step in range(5)]
    given = options(tiny_model, max_staleness=1, **GRPO)
    alone = group(trainer_group.train, 1, given, old, [6])
    together = group(trainer_group.train, 2, given, old, [4, 2])
    assert_close(trainer_group.assembled(alone), trainer_group.assembled(together))
    assert [result["counts"].get("rows_stale", 0) for result in (*alone, *together)] == [4, 4, 0]
    assert alone[0]["metrics"]["stale_rows"] == pytest.approx(2 / 6)
    for result in (*alone, *together):  # 4 + 2 + 3 + 5 tokens are left
        lags = {name: value for name, value in result["metrics"].items() if name.startswith("lag_")}
        assert lags == {"lag_0": pytest.approx(13 / 14), "lag_1": pytest.approx(1 / 14)}
        assert result["metrics"]["staleness"] == pytest.approx(1 / 14)


def test_the_versions_of_on_policy_rows_change_no_bit(group, tiny_model, rollouts):
    plain = [rollouts(step) for step in range(3)]
    marked = [versions(batch, [0] * 6, step) for step, batch in enumerate(plain)]
    one = group(trainer_group.train, 2, options(tiny_model, **GRPO), plain, [4, 2])
    other = group(trainer_group.train, 2, options(tiny_model, max_staleness=0, **GRPO), marked, [4, 2])
    assert [digest(rank["state"]) for rank in one] == [digest(rank["state"]) for rank in other]
    assert other[0]["metrics"]["stale_rows"] == 0.0
    assert (other[0]["metrics"]["staleness"], other[0]["metrics"]["lag_0"]) == (0.0, 1.0)
