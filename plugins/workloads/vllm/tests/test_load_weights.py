"""A weight update is seen by the next token, replaces everything, and refuses what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rolemesh import Shard, Sharded, Shards
from rolemesh.graph.routes import route
from rolemesh_runtime.values import combine
from rolemesh_vllm import VLLMWorkload


@pytest.mark.parametrize("head", ["tied head left out", "tied head passed too"])
def test_after_an_update_prompts_that_were_cached_get_the_new_models_greedy_output(
    rollout: VLLMWorkload, head: str, prompts: Any, new_weights: Any, greedy: Any
) -> None:
    batch = prompts(3)
    old = rollout.evaluate(batch)
    seed, version = (21, 2) if head == "tied head left out" else (22, 3)
    model, weights = new_weights(seed, version)
    if head == "tied head passed too":
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    rollout.load_weights(weights)
    new = rollout.evaluate(batch)
    assert [row.tolist() for row in new["completion_ids"]] == [greedy(model, row, 8) for row in new["prompt_ids"]]
    assert new["completion_ids"] != old["completion_ids"]


def test_every_sample_says_which_weights_made_it(rollout: VLLMWorkload, prompts: Any, new_weights: Any) -> None:
    for version in (40, 41):
        rollout.load_weights(new_weights(version, version)[1])
        assert rollout.generate(prompts(2))["weight_version"].tolist() == [version] * 6


def test_torch_tensors_are_taken_like_arrays(rollout: VLLMWorkload, prompts: Any, new_weights: Any) -> None:
    import torch

    _, weights = new_weights(50, 50)
    rollout.load_weights(weights)
    from_arrays = rollout.generate(prompts(2))
    rollout.load_weights({name: torch.from_numpy(array.copy()) for name, array in weights.items()})
    assert rollout.generate(prompts(2)) == from_arrays


@pytest.mark.parametrize("dim", [0, -1], ids=["rows", "columns"])
def test_tensors_that_come_in_pieces_are_joined(
    rollout: VLLMWorkload, prompts: Any, new_weights: Any, dim: int
) -> None:
    _, weights = new_weights(60, 60)
    rollout.load_weights(weights)
    expected = rollout.generate(prompts(2))
    rollout.load_weights(new_weights(61, 61)[1])
    parts = [Shards({n: cut(array, rank, dim) for n, array in weights.items()}) for rank in range(2)]
    rollout.load_weights(combine(parts, route(Sharded(), 2, Sharded(dim=None), 1).combine))
    assert rollout.generate(prompts(2)) == expected


def cut(array: np.ndarray, rank: int, dim: int) -> Shard:
    """Return the part of `array` along `dim` that rank `rank` of two has."""
    half = -(-array.shape[dim] // 2)
    offsets = [0] * array.ndim
    offsets[dim] = rank * half
    place = [slice(None)] * array.ndim
    place[dim] = slice(rank * half, (rank + 1) * half)
    return Shard(array[tuple(place)], array.shape, offsets)


def test_the_given_memory_is_not_kept(rollout: VLLMWorkload, prompts: Any, new_weights: Any) -> None:
    _, weights = new_weights(70, 70)
    writable = {name: array.copy() for name, array in weights.items()}
    rollout.load_weights(writable)
    expected = rollout.evaluate(prompts(2))
    for array in writable.values():
        array[:] = 0
    assert rollout.evaluate(prompts(2)) == expected


def test_an_update_that_breaks_off_leaves_room_for_the_next(
    rollout: VLLMWorkload, prompts: Any, new_weights: Any
) -> None:
    import torch

    _, weights = new_weights(75, 75)
    rollout.load_weights(weights)
    expected = rollout.evaluate(prompts(2))

    def broken() -> Any:
        yield "model.norm.weight", torch.zeros(64)
        raise OSError("no further tensors")

    with pytest.raises(OSError, match="no further tensors"):
        rollout.engine._take(broken())
    rollout.load_weights(weights)
    assert rollout.evaluate(prompts(2)) == expected


def test_adapters_are_merged_into_the_weights_of_the_folder(
    rollout: VLLMWorkload, tiny_model: Any, prompts: Any, new_weights: Any, greedy: Any, adapters: Any
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    rollout.load_weights(new_weights(90, 90)[1])  # which the adapters are not of
    for seed in (0, 1):
        given = adapters(4, seed)
        rollout.load_weights(given)
        model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
        for name in [name for name in given if name.endswith(".lora_A.weight")]:
            weight = model.get_submodule(name.removesuffix(".lora_A.weight")).weight
            up, down = (torch.from_numpy(given[name.replace("lora_A", half)]) for half in ("lora_B", "lora_A"))
            weight.data += 2.0 * up @ down
        found = rollout.evaluate(prompts(3))
        assert [row.tolist() for row in found["completion_ids"]] == [
            greedy(model, row, 8) for row in found["prompt_ids"]
        ]
        assert found["weight_version"].tolist() == [4] * 3


def test_adapters_of_another_model_are_refused(rollout: VLLMWorkload, adapters: Any) -> None:
    wrong = adapters(4, 0)
    wrong["model.layers.0.self_attn.q_proj.lora_A.weight"] = np.zeros((4, 63), np.float32)
    with pytest.raises(ValueError, match=r"of shape \(4, 63\) does not fit .*q_proj.weight .* is \(64, 64\)"):
        rollout.load_weights(wrong)
    del wrong["model.layers.1.mlp.down_proj.lora_B.weight"]
    with pytest.raises(ValueError, match="no adapter with both of its halves"):
        rollout.load_weights({k: v for k, v in wrong.items() if "q_proj" not in k})


def renamed(weights: dict[str, Any]) -> None:
    weights["model.layers.0.self_attn.q_prj.weight"] = weights.pop("model.layers.0.self_attn.q_proj.weight")


def incomplete(weights: dict[str, Any]) -> None:
    del weights["model.norm.weight"]


def reshaped(weights: dict[str, Any]) -> None:
    weights["model.norm.weight"] = np.zeros(63, np.float32)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (renamed, r"'model.layers.0.self_attn.q_prj.weight'; did you mean 'model.layers.0.self_attn.q_proj.weight'\?"),
        (incomplete, r"1 of the model's 21 tensors are missing, e.g. 'model.norm.weight'"),
        (reshaped, r"'model.norm.weight' has shape \(63,\), the model's is \(64,\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_anything_changes(
    rollout: VLLMWorkload, spoil: Any, message: str, prompts: Any, new_weights: Any
) -> None:
    before = rollout.evaluate(prompts(1))
    _, weights = new_weights(80, 80)
    spoil(weights)
    with pytest.raises(ValueError, match=message):
        rollout.load_weights(weights)
    assert rollout.evaluate(prompts(1)) == before
