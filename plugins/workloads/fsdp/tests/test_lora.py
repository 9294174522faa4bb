"""Adapters alone are trained, kept, synced and exported; the model's own weights are the folder's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trainer_group
from transformers import AutoModelForCausalLM

from rolemesh.errors import RolemeshError
from rolemesh_fsdp import FSDPOptions, FSDPWorkload
from rolemesh_runtime.digest import digest
from rolemesh_training.lora import adapt
from rolemesh_training.options import LoRAOptions

GRPO = {"loss": "rolemesh_training.losses:grpo"}


def options(model: Path, **more: Any) -> dict[str, Any]:
    return {
        "model": str(model),
        "lr": 1e-2,
        "weight_decay": 0.1,
        "lora": {"rank": 4, "dropout": 0.1},
        "dropout": True,
        **more,
    }


@pytest.mark.soak
def test_two_ranks_take_the_step_of_one_and_give_adapters_only(group, tiny_model, texts):
    # With B = 0 at first A has next to no gradient, whose rounding Adam would blow up.
    given, batches = options(tiny_model, lora={"rank": 4}, optimizer="sgd"), [texts(seed) for seed in range(3)]
    alone = group(trainer_group.train, 1, given, batches, [5])
    together = group(trainer_group.train, 2, given, batches, [4, 1])
    one, other = trainer_group.assembled(alone), trainer_group.assembled(together)
    assert one.keys() == other.keys()
    assert {name.split(".lora_")[-1] for name in one} == {"A.weight", "B.weight", "__version__", "__lora_scaling__"}
    assert one["__lora_scaling__"].tolist() == [4.0]
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, rtol=1e-4, atol=2e-5, err_msg=name)
    assert any(np.abs(value).max() > 1e-3 for name, value in one.items() if "lora_B" in name)


@pytest.mark.parametrize("world_size", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_a_restored_group_continues_bit_for_bit(group, tiny_model, rollouts, world_size):
    given, shares = options(tiny_model, **GRPO), [4, 2] if world_size == 2 else [6]
    batches = [rollouts(seed) for seed in range(3)]
    straight = group(trainer_group.train_and_return_to, world_size, given, batches, shares, 1)
    early = [result["early"] for result in straight]
    resumed = group(trainer_group.continue_from, world_size, given, early, batches[1:], shares)
    assert [digest(r["state"]) for r in straight] == [digest(r["state"]) for r in resumed]
    assert all("lora_" in name for name in early[0]["model"])
    assert early[0]["optimizer"]["exp_avg"].keys() == early[0]["model"].keys()


def test_the_export_is_peft_s_folder(group, tiny_model, rollouts, tmp_path):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from rolemesh_training.packing import completion_logprobs

    given, batches, asked = options(tiny_model, **GRPO), [rollouts(0)], rollouts(5)
    (trained,) = group(trainer_group.train, 1, given, batches, [6])
    state = {name: torch.from_numpy(shard.data) for name, shard in trained["state"]["model"].items()}
    FSDPWorkload.export(FSDPOptions(**given), {"model": state}, tmp_path / "adapters")
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32), tmp_path / "adapters"
    ).eval()
    columns = asked["prompt_ids"], asked["completion_ids"], torch.device("cpu")
    with torch.no_grad():
        found = completion_logprobs(model, *columns, packed=False).numpy()
        base = completion_logprobs(model.unload(), *columns, packed=False).numpy()
    (wanted,) = group(trainer_group.logprobs_after, 1, given, batches, asked, [6])
    np.testing.assert_allclose(found, wanted.values, atol=2e-5)
    assert np.abs(base - wanted.values).max() > 1e-3


def test_a_head_of_its_own_is_trained_beside_the_adapters(group, tiny_model):
    given = options(tiny_model, task="value", lora={"targets": ["q_proj"]})
    (state,) = group(trainer_group.state_of, 1, given)
    adapters = {f"model.layers.{i}.self_attn.q_proj.lora_{half}.weight" for i in (0, 1) for half in "AB"}
    assert {"score.weight"} | adapters <= state["model"].keys() <= {"score.weight", "score.bias"} | adapters


@pytest.mark.parametrize(
    ("targets", "task", "message"),
    [
        (["q_proj", "v_porj"], "causal_lm", "the model has no layer 'v_porj'"),
        (["proj"], "causal_lm", "the model has no layer 'proj'"),
        (["q_proj", "layers.9.self_attn.q_proj"], "causal_lm", "the model has no layer 'layers.9.self_attn.q_proj'"),
        (["q_proj", "score"], "value", "the model has no layer 'score'"),
        ([], "causal_lm", "there is no layer to adapt"),
    ],
)
def test_a_target_that_no_layer_has_is_refused_with_the_layers_that_exist(tiny_model, targets, task, message):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    if task == "value":
        model.score = torch.nn.Linear(4, 1)
    with pytest.raises(RolemeshError, match=message) as caught:
        adapt(model, LoRAOptions(targets=targets), task, 0)
    assert {"q_proj", "v_proj", "down_proj"} <= set(re.findall(r"\w+", str(caught.value.remedy)))


def test_a_target_is_the_full_name_of_a_layer_or_the_end_of_it(tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    adapt(model, LoRAOptions(targets=["self_attn.v_proj", "model.layers.0.mlp.up_proj"]), "causal_lm", 0)
    adapted = {name.removesuffix(".base_layer") for name, _ in model.named_modules() if name.endswith(".base_layer")}
    values = {f"model.layers.{i}.self_attn.v_proj" for i in (0, 1)}
    assert adapted == values | {"model.layers.0.mlp.up_proj"}


@pytest.mark.parametrize(
    ("more", "message"),
    [({"frozen": True}, "a frozen role trains nothing"), ({"init": "random"}, "init: random does not read")],
)
def test_options_that_contradict_adapters_are_refused(tiny_model, more, message):
    with pytest.raises(ValueError, match=message):
        FSDPOptions(**options(tiny_model, **more))


def test_memory_that_was_given_back_between_steps_changes_no_bit(group, tiny_model, texts):
    batches = [texts(seed) for seed in range(2)]
    plain = group(trainer_group.train, 2, options(tiny_model), batches, [3, 2])
    paused = group(trainer_group.train_with_pauses, 2, options(tiny_model), batches, [3, 2])
    assert [digest(rank["state"]) for rank in plain] == [digest(rank["state"]) for rank in paused]


def test_the_head_of_tied_embeddings_takes_no_adapter(tiny_model):
    with pytest.raises(RolemeshError, match="'lm_head' has the weights of the token embedding") as refused:
        adapt(
            AutoModelForCausalLM.from_pretrained(tiny_model), LoRAOptions(rank=2, targets=["lm_head"]), "causal_lm", 0
        )
    assert refused.value.remedy == "leave 'lm_head' out"
