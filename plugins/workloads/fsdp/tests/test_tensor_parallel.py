"""Ranks that divide each layer: the same losses, gradients and updates as one rank, and the same state and weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trainer_group

from rolemesh.api.batch import Batch
from rolemesh.api.workload import RankContext
from rolemesh.errors import RolemeshError
from rolemesh_runtime.digest import digest
from rolemesh_training.group import join

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "tied": ("llama", {}),
    "own head": ("llama", {"tie_word_embeddings": False}),
    "odd vocabulary": ("llama", {"vocab_size": 63}),
    "norms of heads": ("qwen3", {"head_dim": 8}),
    "biases": ("qwen2", {}),
    "fused": ("phi3", {"tie_word_embeddings": False}),
}
USUAL = ("tied", "norms of heads")
"""Those that `make test` tries. The others lead through the same code."""
EACH = [kind if kind in USUAL else pytest.param(kind, marks=pytest.mark.more) for kind in KINDS]
GRPO = {"loss": "rolemesh_training.losses:grpo"}


@pytest.fixture(scope="module")
def model(even_model: Callable[..., Path]) -> Callable[..., Path]:
    """Return the folder of a model of one of `KINDS`."""
    return lambda kind="tied", **config: even_model(KINDS[kind][0], **{**KINDS[kind][1], **config})


def options(model: Path, **more: Any) -> dict[str, Any]:
    return {"model": str(model), "optimizer": "sgd", "momentum": 0.5, "lr": 1e-2, "clip_norm": 0.5, **more}


def assert_same(alone: list[Any], together: list[Any]) -> None:
    """Everything within 1e-6, as sums in another order are."""
    one, other = trainer_group.assembled(alone), trainer_group.assembled(together)
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, rtol=1e-6, atol=1e-6, err_msg=name)
    for result in together:
        assert result["metrics"].keys() == alone[0]["metrics"].keys()
        for name, value in alone[0]["metrics"].items():
            assert result["metrics"][name] == pytest.approx(value, rel=1e-6, abs=1e-6), name
    counts = {name: sum(result["counts"].get(name, 0) for result in together) for name in alone[0]["counts"]}
    assert counts == alone[0]["counts"]


@pytest.mark.parametrize("kind", EACH)
def test_two_ranks_that_divide_each_layer_take_the_steps_of_one(group, model, texts, kind):
    batches = [texts(seed) for seed in range(3)]
    given = options(model(kind), micro_batch_rows=2)
    alone = group(trainer_group.train, 1, given, batches, [5])
    together = group(trainer_group.train, 2, {**given, "tensor_parallel": 2}, batches, [3, 2])
    assert_same(alone, together)


@pytest.mark.parametrize("kind", [pytest.param("tied", marks=pytest.mark.more), "norms of heads"])
def test_two_sets_of_two_ranks_take_the_steps_of_one(group, model, texts, kind):
    batches = [texts(seed) for seed in range(3)]
    given = options(model(kind), micro_batch_rows=1)
    alone = group(trainer_group.train, 1, given, batches, [5])
    together = group(trainer_group.train, 4, {**given, "tensor_parallel": 2}, batches, [2, 1, 1, 1])
    assert_same(alone, together)


@pytest.mark.more
@pytest.mark.parametrize(
    "more",
    [
        {"gradient_checkpointing": True},
        {"reshard_after_forward": False},
        {"task": "value", "loss": "rolemesh_training.losses:value", "init_seed": 3},
        {"init": "random", "init_seed": 3},
        {"attention": "eager"},
        {"optimizer": "adamw", "eps": 1e-3, "weight_decay": 0.1},
    ],
    ids=str,
)
def test_other_options_take_the_steps_of_one(group, model, rollouts, texts, more):
    rows = [rollouts(seed) for seed in range(3)] if "task" in more else [texts(seed) for seed in range(3)]
    if "task" in more:
        rows = [batch | {"returns": batch["logprobs"], "values": batch["logprobs"]} for batch in rows]
    given = options(model(), **more)
    alone = group(trainer_group.train, 1, given, rows, [rows[0].rows])
    together = group(trainer_group.train, 4, {**given, "tensor_parallel": 2}, rows, [2, 1, 1, rows[0].rows - 4])
    assert_same(alone, together)


def test_ranks_that_cannot_form_sets_say_so_after_a_resize() -> None:
    with pytest.raises(RolemeshError, match=r"3 ranks of role trainer cannot form sets .* 2\n.*a multiple of 2 ranks"):
        join(RankContext(role="trainer", world_size=3), 1.0, needed=True, parallel=2)


def test_packed_rows_of_a_policy_take_the_steps_of_one(group, model, rollouts):
    batches = [rollouts(seed, (1.0, -1.0, 0.5, -0.5, 0.0, 0.0)) for seed in range(3)]
    given = options(model(), **GRPO)
    alone = group(trainer_group.train, 1, given, batches, [6])
    together = group(trainer_group.train, 2, {**given, "tensor_parallel": 2}, batches, [1, 5])
    assert_same(alone, together)


def test_rows_come_back_once_and_in_order(group, model, rollouts):
    given = options(model(), max_length=16, micro_batch_rows=1)
    alone = group(trainer_group.logprobs, 1, given, rollouts(0), [6])
    together = group(trainer_group.logprobs, 4, {**given, "tensor_parallel": 2}, rollouts(0), [1, 2, 0, 3])
    assert [len(part) for part in together] == [len(together[0]), 0, len(together[2]), 0]
    found = np.concatenate([part.values for part in together])
    np.testing.assert_allclose(found, alone[0].values, rtol=1e-6, atol=1e-6)


def test_a_restored_group_continues_bit_for_bit(group, model, rollouts):
    batches, shares = [rollouts(seed) for seed in range(4)], [2, 1, 2, 1]
    given = options(model(), tensor_parallel=2, dropout=True, **GRPO)
    straight = group(trainer_group.train_and_return_to, 4, given, batches, shares, 2)
    early = [result["early"] for result in straight]
    resumed = group(trainer_group.continue_from, 4, given, early, batches[2:], shares)
    for one, other in zip(straight, resumed, strict=True):
        assert digest(one["state"]) == digest(other["state"]) != digest(one["early"])


def test_ranks_keep_equal_copies_of_what_they_do_not_divide(group, model, texts):
    batches: list[Batch] = [texts(seed) for seed in range(3)]
    first, second = group(trainer_group.train, 2, options(model("norms of heads"), tensor_parallel=2), batches, [3, 2])
    for name, shard in first["state"]["model"].items():
        other = second["state"]["model"][name]
        assert shard.offsets != other.offsets or np.array_equal(shard.data, other.data), name
    names = [name for name, shard in first["state"]["model"].items() if shard.data.shape == shard.shape]
    assert any("q_norm" in name for name in names)
    assert not any("proj" in name for name in names), "each layer is divided"


def gradients_of_both(workload: Any, ctx: Any, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
    """The loss and the gradient of every parameter, of this trainer and of the model that transformers divides."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    from rolemesh_training.contract import LossContext
    from rolemesh_training.losses import causal_lm

    def found(model: Any, total: Any) -> dict[str, Any]:
        total.backward()
        whole = {name: p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for name, p in model}
        return {"loss": total.detach().numpy(), **{name: grad.numpy() for name, grad in whole.items()}}

    engine = workload.engine
    own = found(engine.model.named_parameters(), engine.loss_of(batch).total)
    theirs = AutoModelForCausalLM.from_pretrained(
        engine.options.model,
        dtype=torch.float32,
        distributed_config=DistributedConfig(tp_size=ctx.world_size),
        attn_implementation="sdpa",
    )
    context = LossContext(engine.device, 0, 0, {})
    return own, found(theirs.named_parameters(), causal_lm(theirs.train(), batch, context).total)


@pytest.mark.parametrize("kind", ["own head", *(pytest.param(k, marks=pytest.mark.more) for k in ("biases", "fused"))])
def test_a_loss_and_its_gradients_are_those_of_transformers_own_division(group, model, texts, kind):
    given = options(model(kind, tie_word_embeddings=False), tensor_parallel=2)
    for own, theirs in group(gradients_of_both, 2, given, texts(0)):
        assert own.keys() == theirs.keys()
        for name, value in theirs.items():
            np.testing.assert_allclose(own[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.more)])
def test_bfloat16_computes_in_half_and_keeps_float32_state(group, model, texts, ranks):
    batches = [texts(seed) for seed in range(2)]
    exact = group(trainer_group.train, 1, options(model()), batches, [5])
    given = options(model(), dtype="bfloat16", tensor_parallel=2)
    half = group(trainer_group.train, ranks, given, batches, [3, 2, 0, 0][:ranks])
    assert half[0]["state"]["model"]["model.norm.weight"].data.dtype == np.float32
    assert half[0]["metrics"]["loss"] == pytest.approx(exact[0]["metrics"]["loss"], rel=0.05)
    assert half[0]["metrics"]["loss"] != exact[0]["metrics"]["loss"]
    names = [name for name in trainer_group.assembled(half) if name != "__version__"]
    assert all(half[0]["weights"][name][1] == exact[0]["weights"][name][1] for name in names)
