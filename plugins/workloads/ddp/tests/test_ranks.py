"""Several ranks on gloo against one rank: same update, same weights, same continuation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trainer_group
from pydantic import ValidationError

from rolemesh.api.batch import Batch
from rolemesh_checkpoint.reshard import merge, reshard
from rolemesh_ddp import DDPOptions, DDPWorkload
from rolemesh_runtime.digest import digest

OWN = str(Path(__file__).with_name("own_module.py"))


def options(name: str = "plain", **more: Any) -> dict[str, Any]:
    return {"model": f"{OWN}:{name}", "loss": f"{OWN}:squared_error", "lr": 1e-2, "weight_decay": 0.1, **more}


def rows(seed: int) -> Batch:
    x = np.random.default_rng(seed).normal(size=(5, 3)).astype(np.float32)
    return Batch({"x": x, "y": x.sum(1)})


def assert_close(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


def assembled(results: list[Any]) -> dict[str, np.ndarray]:
    """As `trainer_group.assembled`, but each rank has a scalar."""
    scalars = [{n: r["weights"].pop(n)[0] for n in [*r["weights"]] if not r["weights"][n][1]} for r in results]
    assert all(found == scalars[0] for found in scalars)
    return {**scalars[0], **trainer_group.assembled(results)}


SOAK = pytest.mark.soak


@pytest.mark.parametrize(
    ("shares", "more"),
    [
        pytest.param([3, 2], {}, marks=SOAK),
        ([0, 4, 1], {"bucket_mb": 1e-5, "micro_batch_rows": 1}),
        pytest.param([3, 2], {"bucket_mb": 1e-5, "micro_batch_rows": 1}, marks=SOAK),
        pytest.param([3, 2], {"optimizer": "sgd"}, marks=SOAK),
    ],
    ids=str,
)
def test_ranks_with_uneven_rows_take_the_step_of_one_rank(group, shares, more):
    batches = [rows(seed) for seed in range(3)]
    alone = group(trainer_group.train, 1, options(**more), batches, [5])
    together = group(trainer_group.train, len(shares), options(**more), batches, shares)
    assert_close(assembled(alone), assembled(together))
    for result in together:
        assert result["metrics"] == pytest.approx(alone[0]["metrics"], rel=1e-4)


@pytest.mark.parametrize("world_size", [pytest.param(1, marks=SOAK), 3])
def test_a_restored_group_continues_bit_for_bit(group, world_size):
    batches, shares = [rows(seed) for seed in range(4)], [3, 2, 0] if world_size == 3 else [5]
    given = options("make", bucket_mb=1e-4)
    straight = group(trainer_group.train_and_return_to, world_size, given, batches, shares, 2)
    early = [result["early"] for result in straight]
    resumed = group(trainer_group.continue_from, world_size, given, early, batches[2:], shares)
    for one, other in zip(straight, resumed, strict=True):
        assert early[0]["version"] == 2
        assert digest(one["state"]) == digest(other["state"]) != digest(one["early"])


def test_two_ranks_four_and_one_go_on_as_one_would(group):
    """Snapshots are cut for another number of ranks; what they hold stays the same bits."""
    batches = [rows(seed) for seed in range(6)]
    states, weights = None, None
    for size, shares, at in ((2, [3, 2], 0), (4, [2, 1, 1, 1], 2), (1, [5], 4)):
        part = batches[at : at + 2]
        if states is None:
            results = group(trainer_group.train, size, options(), part, shares)
        else:
            empty = group(trainer_group.train, size, options(), [], shares)
            cut = [reshard(states, result["state"]) for result in empty]
            results = group(trainer_group.continue_from, size, options(), cut, part, shares)
        states, weights = [r["state"] for r in results], assembled(results)
    straight = group(trainer_group.train, 1, options(), batches, [5])
    assert_close(assembled(straight), weights)
    moments = [merge(s)["optimizer"]["exp_avg"] for s in ([straight[0]["state"]], states)]
    assert_close(*moments)


def test_a_hugging_face_model_learns_as_it_does_alone(group, tiny_model, rollouts):
    given = {"model": str(tiny_model), "loss": "rolemesh_training.losses:grpo", "lr": 1e-2}
    batches = [rollouts(seed, (1.0, -1.0, 0.5, -0.5, 0.0, 0.0)) for seed in range(3)]
    alone = group(trainer_group.train, 1, given, batches, [6])
    together = group(trainer_group.train, 2, {**given, "micro_batch_rows": 2}, batches, [4, 2])
    one, other = trainer_group.assembled(alone), trainer_group.assembled(together)
    assert (one["lm_head.weight"] == one["model.embed_tokens.weight"]).all()
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, rtol=1e-4, atol=2e-5, err_msg=name)


@SOAK
def test_bfloat16_computes_in_half_and_keeps_float32_state(group):
    batches = [rows(seed) for seed in range(2)]
    exact, half = (group(trainer_group.train, 2, options(dtype=d), batches, [3, 2]) for d in ("float32", "bfloat16"))
    assert half[0]["state"]["model"]["head.weight"].data.dtype == np.float32
    assert half[0]["metrics"]["loss"] == pytest.approx(exact[0]["metrics"]["loss"], rel=0.05)
    assert half[0]["metrics"]["loss"] != exact[0]["metrics"]["loss"]


def test_the_export_is_what_the_module_loads(group, tmp_path):
    import torch
    from own_module import plain
    from safetensors.torch import load_file

    results = group(trainer_group.train, 2, options(), [rows(0)], [3, 2])
    state = trainer_group.as_tensors(merge([r["state"] for r in results]))
    DDPWorkload.export(DDPOptions.model_validate(options()), state, tmp_path / "out")
    model = plain()
    model.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))
    assert torch.equal(model.gain.detach(), state["model"]["gain"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "m", "model_options": {"a": 1}}, "model_options are for a function"),
        ({"model": f"{OWN}:plain", "task": "value"}, "task is for Hugging Face models"),
        ({"model": f"{OWN}:plian"}, "did you mean 'plain'"),
    ],
)
def test_wrong_options_are_refused_with_a_hint(given, message):
    with pytest.raises(ValidationError, match=message):
        DDPOptions.model_validate(given)


def test_a_function_that_returns_no_module_is_named(group):
    with pytest.raises(AssertionError, match="returned str; it must return a torch"):
        group(trainer_group.train, 1, options("nothing"), [], [0])


@pytest.mark.parametrize("world_size", [pytest.param(1, marks=SOAK), 2])
def test_adapters_alone_are_trained_and_continue_bit_for_bit(group, tiny_model, rollouts, world_size):
    given = {"model": str(tiny_model), "loss": "rolemesh_training.losses:grpo"}
    given |= {"lora": {"rank": 4, "dropout": 0.1}, "dropout": True}
    shares, batches = [4, 2] if world_size == 2 else [6], [rollouts(seed) for seed in range(3)]
    straight = group(trainer_group.train_and_return_to, world_size, given, batches, shares, 1)
    early = [result["early"] for result in straight]
    resumed = group(trainer_group.continue_from, world_size, given, early, batches[1:], shares)
    assert [digest(r["state"]) for r in straight] == [digest(r["state"]) for r in resumed]
    assert all("lora_" in name for name in early[0]["model"])
    assert "__lora_scaling__" in trainer_group.assembled(straight)
