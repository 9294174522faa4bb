"""Options that the driver refuses before the start, without an import of torch or DeepSpeed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from rolemesh_deepspeed import DeepSpeedOptions
from rolemesh_deepspeed.config import DEFAULTS, ZERO, asks_for_nothing, checked


def test_importing_the_package_and_checking_options_leaves_torch_out(tiny_model):
    code = (
        "import sys; from rolemesh_deepspeed import DeepSpeedOptions, DeepSpeedWorkload\n"
        f"DeepSpeedWorkload.check(DeepSpeedOptions(model={str(tiny_model)!r}), 2)\n"
        "sys.exit(','.join(m for m in ('torch', 'transformers', 'deepspeed') if m in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_config_of_a_file_is_read_beside_the_job(tmp_path):
    given = {
        "train_batch_size": "auto",
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
        "bf16": {"enabled": True},
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.8, 0.9], "weight_decay": "auto"}},
    }
    (tmp_path / "ds.json").write_text(json.dumps(given))
    options = DeepSpeedOptions.model_validate({"model": "m", "config": "ds.json"}, context={"base": str(tmp_path)})
    assert (options.stage, options.dtype, options.clip_norm) == (3, "bfloat16", 0.5)
    assert (options.optimizer, options.lr, options.betas, options.weight_decay) == ("adamw", 3e-4, (0.8, 0.9), 0.0)
    again = DeepSpeedOptions.model_validate(options.model_dump(mode="json"), context={"base": "/elsewhere"})
    assert again == options


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"zero_optimisation": {}}, "did you mean 'zero_optimization'"),
        ({"zero_optimization": {"stage": 0}}, "without ZeRO use the workload ddp"),
        ({"zero_optimization": {"stagee": 2}}, "did you mean 'stage'"),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, "a snapshot would not reach"),
        ({"train_batch_size": 8}, "rows come from the flow"),
        ({"optimizer": {"type": "OneBitAdam"}}, "it is one of Adam, AdamW and SGD"),
        ({"optimizer": {"type": "Adam", "params": {"freeze_step": 2}}}, "optimizer.params.freeze_step is not"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "cannot both be enabled"),
        ({"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "/x"}}}, "a snapshot would not reach"),
        ({"zero_optimization": {"cpu_offload": True}}, "a snapshot would not reach"),
        ({"zero_optimization": {"zero_hpz_partition_size": 8}}, "one partition of a parameter"),
        ({"zero_optimization": {"zero_quantized_weights": True}}, "would not go on bit for bit"),
        ({"zero_optimization": {"load_from_fp32_weights": False}}, "the engine takes snapshots"),
        ({"zero_optimization": {"mics_shard_size": 4}}, "mics_shard_size is not supported"),
        ({"gradient_accumulation_steps": 4}, "micro_batch_rows"),
        ({"data_types": {"grad_accum_dtype": "fp32"}}, "in the type that DeepSpeed chooses"),
        ({"checkpoint": {"load_universal": True}}, "the engine takes snapshots"),
        ({"compile": {"deepcompile": True}}, "'compile' cannot be set"),
        ({"tensor_parallel": {"autotp_size": 2}}, "'tensor_parallel' cannot be set"),
        ({"flops_profiler": {"enabled": True}}, "'flops_profiler' is not supported"),
        ({"activation_checkpointing": {"cpu_checkpointing": True}}, "gradient_checkpointing"),
        ({"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": True}}}}, "not supported"),
        ({"optimizer": {"type": "SGD", "params": {"nesterov": True}}}, "optimizer.params.nesterov is not"),
        (
            {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}},
            "set the option schedule_upd",
        ),
        ({"gradient_clipping": 2.0}, "clip_norm is 1.5 as an option and 2.0 in config"),
        ("nowhere.json", "nowhere.json cannot be read"),
    ],
    ids=str,
)
def test_an_impossible_option_is_refused_with_the_reason(config, message):
    with pytest.raises(ValidationError, match=message):
        DeepSpeedOptions.model_validate({"model": "m", "clip_norm": 1.5, "config": config})


RLHF = {  # what OpenRLHF builds with its own defaults
    "steps_per_print": 100,
    "zero_optimization": {
        "stage": 2,
        "offload_param": {"device": "none"},
        "offload_optimizer": {"device": "none", "pin_memory": True},
        **dict.fromkeys(("sub_group_size", "reduce_bucket_size", "stage3_max_live_parameters"), "auto"),
        **dict.fromkeys(("stage3_max_reuse_distance", "stage3_prefetch_bucket_size"), "auto"),
        "stage3_param_persistence_threshold": "auto",
        "zero_hpz_partition_size": 1,
        **dict.fromkeys(("zero_quantized_weights", "zero_quantized_gradients"), False),
    },
    "bf16": {"enabled": True},
    "fp16": {"enabled": False},
    "gradient_clipping": 1.0,
    **dict.fromkeys(("prescale_gradients", "wall_clock_breakdown"), False),
    "data_types": {"grad_accum_dtype": None},
    "checkpoint": {"load_universal": False},
    "compile": {"deepcompile": False},
    "tensor_parallel": {"autotp_size": 1},
}
SCALER = {"loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1}
FINETUNING = {  # the shape of Qwen's, for ZeRO 3
    "fp16": {"enabled": "auto", **SCALER},
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")},
    "scheduler": {
        "type": "WarmupLR",
        "params": dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto"),
    },
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "none", "pin_memory": True},
        "offload_param": {"device": "none", "pin_memory": True},
        **dict.fromkeys(("overlap_comm", "contiguous_gradients", "stage3_gather_16bit_weights_on_model_save"), True),
        **dict.fromkeys(("sub_group_size", "stage3_max_live_parameters", "stage3_max_reuse_distance"), 1e9),
        **dict.fromkeys(("reduce_bucket_size", "stage3_prefetch_bucket_size"), "auto"),
        "stage3_param_persistence_threshold": "auto",
    },
    **dict.fromkeys(("gradient_accumulation_steps", "gradient_clipping", "train_batch_size"), "auto"),
    "train_micro_batch_size_per_gpu": "auto",
    "steps_per_print": 100,
    "wall_clock_breakdown": False,
}
EVALUATION = {**RLHF, "zero_optimization": {"stage": 0, "offload_param": {"device": "none", "pin_memory": True}}}
OFF = {
    "gradient_accumulation_steps": 1,
    "zero_optimization": {
        "offload_optimizer": None,
        "offload_param": {"pin_memory": True},
        "cpu_offload": False,
        "elastic_checkpoint": False,
        "load_from_fp32_weights": True,
        "mics_shard_size": -1,
        "zenflow": None,
    },
    **{key: {"enabled": False, "more": 512} for key in ("amp", "elasticity", "hybrid_engine", "curriculum_learning")},
    "a_section_of_next_year": {"enabled": False, "size": 3},
    "flops_profiler": {"profile_step": 1, "detailed": True},
    "activation_checkpointing": {"partition_activations": False, "number_checkpoints": None, "profile": False},
    "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": False, "bits": 8}}},
    "tensorboard": {"enabled": False, "output_path": "/x", "job_name": "y"},
    "fp16": False,
    "sparse_gradients": False,
    "scheduler": {"type": None, "params": {}},
    "train_batch_size": None,
    "optimizer": {"type": "Adam", "params": {"torch_adam": False, "amsgrad": False, "bias_correction": True}},
}


@pytest.mark.parametrize(
    ("config", "frozen", "stage", "dtype", "clip_norm"),
    [
        pytest.param(RLHF, False, 2, "bfloat16", 1.0, id="openrlhf"),
        pytest.param(EVALUATION, True, 0, "bfloat16", 1.0, id="openrlhf's reference"),
        pytest.param(FINETUNING, False, 3, "float32", 1.0, id="qwen"),
        pytest.param(OFF, False, 2, "float32", 1.0, id="everything off"),
        pytest.param({"gradient_clipping": 0.0}, False, 2, "float32", None, id="no clipping"),
    ],
)
def test_options_without_a_request_are_accepted(config, frozen, stage, dtype, clip_norm):
    options = DeepSpeedOptions.model_validate({"model": "m", "frozen": frozen, "config": config})
    assert (options.stage, options.dtype, options.clip_norm) == (stage, dtype, clip_norm)
    assert DeepSpeedOptions.model_validate(options.model_dump(mode="json")) == options
    assert checked(options.config) == options.config, "DeepSpeed gets only what asks for something"


def test_a_scheduler_that_says_auto_has_the_options_values():
    given = {"model": "m", "lr": 3e-4, "warmup_steps": 7, "schedule_updates": 90}
    params = dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps"), "auto")
    config = {"scheduler": {"type": "WarmupDecayLR", "params": params}}
    options = DeepSpeedOptions.model_validate({**given, "config": config})
    filled = {"warmup_max_lr": 3e-4, "warmup_num_steps": 7, "total_num_steps": 90}
    assert options.config["scheduler"]["params"] == filled
    assert DeepSpeedOptions.model_validate(options.model_dump(mode="json")) == options
    config = {"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.1}}}
    with pytest.raises(ValidationError, match=r"lr is 0\.0003 as an option and 0\.1 in config"):
        DeepSpeedOptions.model_validate({"model": "m", "lr": 3e-4, "config": config})


@pytest.mark.parametrize(
    ("kind", "mode", "optimizer"),
    [("Adam", None, "adamw"), ("Adam", True, "adamw"), ("Adam", False, "adam"), ("AdamW", False, "adamw")],
)
def test_adam_decays_weights_as_deepspeed_does(kind, mode, optimizer):
    config = {"optimizer": {"type": kind, "params": {"adam_w_mode": mode}}}
    assert DeepSpeedOptions.model_validate({"model": "m", "config": config}).optimizer == optimizer


def test_the_defaults_are_deepspeeds_own():
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    own = DeepSpeedZeroConfig()
    for path, values in DEFAULTS.items():
        section, _, key = path.rpartition(".")
        if section == "zero_optimization" and key in DeepSpeedZeroConfig.model_fields:
            assert getattr(own, key) in values, path
    for name, field in DeepSpeedZeroConfig.model_fields.items():
        value = getattr(own, name)
        if (field.alias or name) not in ZERO and isinstance(value, (bool, type(None))):
            assert asks_for_nothing(f"zero_optimization.{field.alias or name}", value), name


def test_the_passed_options_are_those_that_deepspeed_knows():
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    known = {field.alias or name for name, field in DeepSpeedZeroConfig.model_fields.items()}
    assert not ZERO - known
