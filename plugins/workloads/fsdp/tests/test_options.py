"""Options that the driver refuses before the start, without an import of torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from rolemesh.errors import OptionsError
from rolemesh_fsdp import FSDPOptions, FSDPWorkload

GRPO = "rolemesh_training.losses:grpo"


def test_importing_the_package_and_checking_options_leaves_torch_out(even_model):
    given = f"model={str(even_model())!r}, loss='rolemesh_training.losses:grpo', tensor_parallel=2"
    code = (
        "import sys; from rolemesh_fsdp import FSDPOptions, FSDPWorkload\n"
        f"FSDPWorkload.check(FSDPOptions({given}), 2)\n"
        "sys.exit(','.join(m for m in ('torch', 'transformers', 'ray') if m in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_model_folder_is_relative_to_the_job_file(tiny_model):
    context = {"base": str(tiny_model.parent)}
    options = FSDPOptions.model_validate({"model": tiny_model.name}, context=context)
    assert options.model == str(tiny_model)
    FSDPWorkload.check(options, 2)


def test_a_validated_folder_stays_when_the_options_travel_to_a_rank(tiny_model):
    options = FSDPOptions.model_validate({"model": tiny_model.name}, context={"base": str(tiny_model.parent)})
    again = FSDPOptions.model_validate(options.model_dump(mode="json"), context={"base": "/elsewhere"})
    assert again.model == options.model


def test_a_missing_model_folder_is_named_with_the_remedy(tmp_path):
    with pytest.raises(OptionsError, match=rf"{tmp_path}/nowhere does not exist\n.*set options.model") as caught:
        FSDPWorkload.check(FSDPOptions(model=str(tmp_path / "nowhere")), 1)
    assert "relative paths start at the job file" in str(caught.value)


def test_a_folder_without_config_is_refused(tmp_path):
    with pytest.raises(OptionsError, match=r"has no config\.json"):
        FSDPWorkload.check(FSDPOptions(model=str(tmp_path)), 1)


def test_a_folder_without_weights_needs_random_init(tmp_path):
    Path(tmp_path, "config.json").write_text("{}")
    with pytest.raises(OptionsError, match=r"set options\.init to random"):
        FSDPWorkload.check(FSDPOptions(model=str(tmp_path)), 1)
    FSDPWorkload.check(FSDPOptions(model=str(tmp_path), init="random"), 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"learning_rate": 1.0}, "Extra inputs are not permitted"),
        ({"lr": 0}, "greater than 0"),
        ({"betas": [0.9, 1.0]}, "each beta must be in"),
        ({"schedule": "cosine"}, "schedule cosine needs schedule_updates"),
        ({"schedule": "wsd", "schedule_updates": 9, "decay_updates": 9}, "leaves nothing between"),
        ({"lora": {}, "tensor_parallel": 2}, "lora does not go with tensor_parallel 2"),
        ({"tensor_parallel": 0}, "greater than 0"),
        ({"lora": {"dropout": 0.1}, "loss": GRPO}, "lora.dropout 0.1 has no effect with the loss grpo"),
        ({"loss": GRPO, "loss_options": {"importance_sampling_cap": 0}}, "greater than 0"),
        ({"dtype": "float16"}, "'float32' or 'bfloat16'"),
        ({"logprobs": {"temperature": 0}}, "greater than 0"),
        ({"logprobs": {"temperatur": 1.0}}, "Extra inputs are not permitted"),
        ({"loss": "rolemesh_training.losses:grop"}, "did you mean 'grpo'"),
        ({"loss": GRPO, "loss_options": {"clp": 1}}, "unknown key 'clp'; did you mean 'clip'"),
        ({"loss": GRPO, "loss_options": {"clip": "x"}}, "clip: Input should be a valid number"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_wrong_options_are_refused_with_a_hint(given, message):
    with pytest.raises(ValidationError, match=message):
        FSDPOptions.model_validate({"model": "m", **given})


@pytest.mark.parametrize(
    ("given", "temperature", "packed"),
    [
        ({}, None, True),
        ({"loss": "rolemesh_training.losses:distill", "loss_options": {"temperature": 2.0}}, None, True),
        ({"logprobs": {"temperature": 0.7, "pack": False}}, 0.7, False),
        ({"loss": GRPO, "loss_options": {"temperature": 1.3, "pack": False}}, 1.3, False),
        ({"loss": GRPO, "loss_options": {"temperature": 1.3}, "logprobs": {"pack": False}}, 1.3, False),
    ],
)
def test_a_reference_model_of_any_loss_says_what_its_logprobs_are_of(given, temperature, packed):
    options = FSDPOptions.model_validate({"model": "m", **given})
    assert (options.sampled_at, options.packed) == (temperature, packed)


@pytest.mark.parametrize(
    ("given", "drops"),
    [
        ({}, True),
        ({"loss": GRPO}, False),
        ({"loss": GRPO, "dropout": True}, True),
        ({"dropout": False}, False),
        ({"loss": "rolemesh_training.losses:distill"}, True),
        ({"loss": "rolemesh_training.losses:dpo"}, False),
    ],
)
def test_dropout_is_off_where_a_loss_compares_with_what_had_none(given, drops):
    assert FSDPOptions.model_validate({"model": "m", **given}).drops is drops


def test_options_of_ones_own_loss_are_passed_through(tmp_path):
    Path(tmp_path, "mine.py").write_text("def loss(model, batch, ctx): ...\n")
    given = {"model": "m", "loss": "mine.py:loss", "loss_options": {"anything": [1]}}
    options = FSDPOptions.model_validate(given, context={"base": str(tmp_path)})
    assert options.loss_options == {"anything": [1]}


def test_every_option_is_described():
    undescribed = [name for name, field in FSDPOptions.model_fields.items() if not field.description]
    assert undescribed == []


def test_operators_and_their_partitions():
    found = FSDPWorkload.operators(None)
    assert {name: spec.returns for name, spec in found.items()}.keys() == {"train", "logprobs", "weights"}
    assert type(found["weights"].returns).__name__ == "Sharded"
    assert found["train"].returns is None


@pytest.mark.parametrize(
    ("task", "own"), [("causal_lm", "logprobs"), ("value", "values"), ("classification", "scores")]
)
def test_the_head_says_what_a_flow_can_ask_for(task, own):
    found = FSDPWorkload.operators(FSDPOptions(model="m", task=task))
    assert found.keys() == {"train", "weights", own}


def test_a_frozen_role_keeps_no_state():
    assert not FSDPWorkload.stateful(FSDPOptions(model="m", frozen=True))
    assert FSDPWorkload.stateful(FSDPOptions(model="m"))


def test_a_classifier_needs_to_know_where_a_row_ends(tmp_path):
    Path(tmp_path, "config.json").write_text("{}")
    with pytest.raises(OptionsError, match="has no pad_token_id"):
        FSDPWorkload.check(FSDPOptions(model=str(tmp_path), init="random", task="classification"), 1)


EVEN = {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 36}


@pytest.mark.parametrize(
    ("config", "world_size", "message"),
    [
        ({}, 3, r"does not divide the role's 3 ranks into equal sets\n.*set world_size to 2 or 4"),
        ({}, 1, r"does not divide the role's 1 ranks.*\n.*set world_size to 2"),
        ({"num_attention_heads": 9, "num_key_value_heads": 3}, 2, r"9 attention heads cannot be.*\n.*take one of 1, 3"),
        ({"num_key_value_heads": 1}, 2, r"1 key and value heads cannot be divided by tensor_parallel 2"),
        ({"intermediate_size": 37}, 2, "37 rows of its feed-forward layers"),
        ({"model_type": "gpt2"}, 2, r"transformers has no plan .*\n.*FSDP2 alone divides any model"),
        ({"model_type": "mixtral"}, 2, "has the style moe_tp_experts, of a mixture of experts"),
        ({"model_type": "qwen3_moe", "text_config": {"model_type": "qwen3_moe"}}, 2, "mixture of experts"),
        ({"model_type": "apertus"}, 2, "transformers' plan of apertus leaves the gradients"),
    ],
)
def test_a_model_that_the_ranks_cannot_divide_is_refused(tmp_path, config, world_size, message):
    Path(tmp_path, "config.json").write_text(json.dumps(EVEN | config))
    with pytest.raises(OptionsError, match=message):
        FSDPWorkload.check(FSDPOptions(model=str(tmp_path), init="random", tensor_parallel=2), world_size)


def test_a_model_that_the_ranks_can_divide_passes(tmp_path):
    for config in (EVEN, {"model_type": "gemma3", "text_config": EVEN | {"model_type": "gemma3_text"}}):
        Path(tmp_path, "config.json").write_text(json.dumps(config))
        FSDPWorkload.check(FSDPOptions(model=str(tmp_path), init="random", tensor_parallel=2), 4)


def test_a_trainer_that_may_take_faster_kernels_does_not_count_as_deterministic(tiny_model):
    for deterministic in (True, False):
        options = FSDPOptions.model_validate({"model": str(tiny_model), "deterministic": deterministic})
        assert FSDPWorkload.varies(options) is not deterministic
