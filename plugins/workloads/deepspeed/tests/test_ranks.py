"""ZeRO 1, 2 and 3 on gloo against one rank and against `fsdp`: same update, same weights, same continuation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trainer_group
from transformers import LlamaConfig, LlamaForCausalLM

from rolemesh import Batch, Ragged
from rolemesh_checkpoint.reshard import merge, reshard
from rolemesh_deepspeed import DeepSpeedOptions, DeepSpeedWorkload
from rolemesh_runtime.digest import digest

GRPO = {"loss": "rolemesh_training.losses:grpo"}
SOAK = pytest.mark.soak


def stages(in_every_run: int = 0) -> pytest.MarkDecorator:
    """Stages of ZeRO. All but one are in the soak."""
    return pytest.mark.parametrize(
        "stage", [s if s == in_every_run else pytest.param(s, marks=SOAK) for s in (1, 2, 3)]
    )


def options(model: Path, stage: int, **more: Any) -> dict[str, Any]:
    # Small numbers for ZeRO 3: some parameters stay whole on each rank, the others are fetched by and by.
    config = {"zero_optimization": {"stage": stage}}
    if stage == 3:
        config["zero_optimization"] |= {"stage3_param_persistence_threshold": 40, "stage3_prefetch_bucket_size": 100}
    return {"model": str(model), "lr": 1e-2, "warmup_steps": 2, "weight_decay": 0.1, "config": config, **more}


def assert_close(one: dict[str, np.ndarray], other: dict[str, np.ndarray], tolerance: float = 1e-5) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, rtol=10 * tolerance, atol=2 * tolerance, err_msg=name)


@pytest.fixture(scope="session")
def fsdp():
    """As `group`, with the workload `fsdp`."""
    yield from trainer_group.served("rolemesh_fsdp:FSDPWorkload")


@pytest.mark.soak
@stages(2)
def test_a_group_takes_the_steps_that_fsdp_takes(group, fsdp, tiny_model, rollouts, stage):
    """Uneven rows, several micro-batches, and one of them without any advantage on any rank."""
    batches = [rollouts(seed, (1.0, -1.0, 0.5, -0.5, 0.0, 0.0)) for seed in range(3)]
    plain = {k: v for k, v in options(tiny_model, stage, **GRPO).items() if k != "config"}
    alone = fsdp(trainer_group.train, 1, plain, batches, [6])
    together = group(trainer_group.train, 2, options(tiny_model, stage, micro_batch_rows=2, **GRPO), batches, [4, 2])
    assert_close(trainer_group.assembled(alone), trainer_group.assembled(together))
    for name in ("loss", "grad_norm", "lr", "staleness"):
        assert together[0]["metrics"][name] == pytest.approx(alone[0]["metrics"][name], rel=1e-3), name


@pytest.mark.soak
@stages(3)
def test_a_restored_group_continues_bit_for_bit(group, tiny_model, texts, stage):
    batches, shares = [texts(seed) for seed in range(4)], [3, 2]
    given = options(tiny_model, stage)
    straight = group(trainer_group.train_and_return_to, 2, given, batches, shares, 2)
    early = [result["early"] for result in straight]
    resumed = group(trainer_group.continue_from, 2, given, early, batches[2:], shares)
    for one, other in zip(straight, resumed, strict=True):
        assert early[0]["version"] == 2
        assert digest(one["state"]) == digest(other["state"]) != digest(one["early"])


@stages()
def test_two_ranks_four_and_one_go_on_as_one_would(group, tiny_model, texts, stage):
    """Snapshots are cut for another number of ranks; what they hold stays the same bits."""
    batches, given = [texts(seed) for seed in range(6)], options(tiny_model, stage)
    states, weights = None, None
    for size, shares, at in ((2, [3, 2], 0), (4, [2, 1, 1, 1], 2), (1, [5], 4)):
        part = batches[at : at + 2]
        if states is None:
            results = group(trainer_group.train, size, given, part, shares)
        else:
            empty = group(trainer_group.train, size, given, [], shares)
            cut = [reshard(states, result["state"]) for result in empty]
            results = group(trainer_group.continue_from, size, given, cut, part, shares)
        states, weights = [r["state"] for r in results], trainer_group.assembled(results)
    straight = group(trainer_group.train, 1, given, batches, [5])
    assert_close(trainer_group.assembled(straight), weights)
    moments = [merge(s)["optimizer"]["exp_avg"] for s in ([straight[0]["state"]], states)]
    assert_close(*moments)


@SOAK
@pytest.mark.parametrize("stage", [2, 3])
def test_a_schedule_of_deepspeeds_own_goes_on_where_it_was(group, tiny_model, texts, stage):
    given = options(tiny_model, stage, warmup_steps=0)
    given["config"]["scheduler"] = {"type": "WarmupLR", "params": {"warmup_num_steps": 6, "warmup_max_lr": 0.01}}
    batches = [texts(seed) for seed in range(4)]
    straight = group(trainer_group.train_and_return_to, 2, given, batches, [3, 2], 2)
    early = [result["early"] for result in straight]
    resumed = group(trainer_group.continue_from, 2, given, early, batches[2:], [3, 2])
    assert straight[0]["metrics"]["lr"] == resumed[0]["metrics"]["lr"] > 0
    assert digest(straight[0]["state"]) == digest(resumed[0]["state"])


@stages()
def test_bfloat16_computes_in_half_and_keeps_float32_state(group, tiny_model, rollouts, stage):
    batches = [rollouts(seed) for seed in range(2)]
    exact, half = (
        group(trainer_group.train, 2, options(tiny_model, stage, dtype=d, **GRPO), batches, [3, 3])
        for d in ("float32", "bfloat16")
    )
    assert half[0]["state"]["model"]["model.norm.weight"].data.dtype == np.float32
    assert half[0]["metrics"]["loss"] == pytest.approx(exact[0]["metrics"]["loss"], rel=0.1)
    assert half[0]["metrics"]["loss"] != exact[0]["metrics"]["loss"]


@SOAK
def test_a_step_without_any_advantage_changes_no_weight(group, tiny_model, rollouts):
    given = options(tiny_model, 3, **GRPO)
    before = group(trainer_group.train, 2, given, [], [3, 3])
    after = group(trainer_group.train, 2, given, [rollouts(0, (0.0,) * 6)], [3, 3])
    start, end = trainer_group.assembled(before), trainer_group.assembled(after)
    assert (start.pop("__version__"), end.pop("__version__")) == (0, 1)
    assert all((start[name] == end[name]).all() for name in start)


@stages(3)
def test_weights_and_export_are_those_of_the_hugging_face_model(group, tiny_model, tmp_path, stage):
    import torch
    from transformers import AutoModelForCausalLM

    results = group(trainer_group.train, 3, options(tiny_model, stage), [], [0, 0, 0])
    found = trainer_group.assembled(results)
    assert found.pop("__version__").tolist() == [0]
    expected = AutoModelForCausalLM.from_pretrained(tiny_model).state_dict()
    state = trainer_group.as_tensors(merge([r["state"] for r in results]))
    DeepSpeedWorkload.export(DeepSpeedOptions.model_validate(options(tiny_model, stage)), state, tmp_path / "out")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).state_dict()
    assert found.keys() == expected.keys() == exported.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value.numpy(), err_msg=name)
        assert torch.equal(exported[name], value), name


@pytest.mark.soak
@stages(2)
def test_adapters_alone_are_trained_as_fsdp_trains_them_and_continue_bit_for_bit(
    group, fsdp, tiny_model, rollouts, stage
):
    # With B = 0 at first A has next to no gradient, whose rounding Adam would blow up.
    given = options(tiny_model, stage, lora={"rank": 4}, optimizer="sgd", **GRPO)
    batches = [rollouts(seed) for seed in range(3)]
    plain = {key: value for key, value in given.items() if key != "config"}
    alone = fsdp(trainer_group.train, 1, plain, batches, [6])
    straight = group(trainer_group.train_and_return_to, 2, given, batches, [4, 2], 1)
    assert_close(trainer_group.assembled(alone), trainer_group.assembled(straight))
    early = [result["early"] for result in straight]
    resumed = group(trainer_group.continue_from, 2, given, early, batches[1:], [4, 2])
    assert [digest(r["state"]) for r in straight] == [digest(r["state"]) for r in resumed]
    assert all("lora_" in name for name in early[0]["model"])


@stages(3)
def test_a_batch_without_rows_on_any_rank_changes_nothing(group, tiny_model, texts, stage):
    trainer_group.assert_no_rows_change_nothing(group, options(tiny_model, stage), [texts(0), texts(1)])


def test_a_frozen_model_in_bfloat16_has_the_positions_of_transformers(group, tmp_path):
    """Rounded frequencies of its rotations are wrong by radians after some hundred tokens."""
    config = LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=4096, initializer_range=0.3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    ids = np.random.default_rng(0).integers(3, 97, 2000)
    columns = {"prompt_ids": ids[:1800], "completion_ids": ids[1800:]}
    batch = Batch({name: Ragged.from_rows([row], np.int32) for name, row in columns.items()} | {"index": np.zeros(1)})
    given = {"model": str(tmp_path), "frozen": True, "dtype": "bfloat16"}
    (found,) = group(trainer_group.logprobs, 1, given, batch, [1])

    def wanted(dtype: torch.dtype) -> np.ndarray:
        model = LlamaForCausalLM.from_pretrained(tmp_path, dtype=dtype).eval()
        with torch.no_grad():
            said = torch.log_softmax(model(torch.tensor(ids)[None]).logits[0, 1799:-1].float(), -1)
        return said.gather(-1, torch.tensor(ids)[1800:, None])[:, 0].numpy()

    exact = wanted(torch.float32)
    assert np.abs(found[0] - exact).mean() < 2 * np.abs(wanted(torch.bfloat16) - exact).mean()
