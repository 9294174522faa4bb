"""DeepSpeed's own config: what of it is taken, what is refused and why. Pure; nothing here imports deepspeed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolemesh.errors import nearest

__all__ = ["OPTIMIZERS", "ZERO", "checked"]

ZERO = frozenset(
    {
        "allgather_bucket_size",
        "allgather_partitions",
        "contiguous_gradients",
        "ignore_unused_parameters",
        "overlap_comm",
        "reduce_bucket_size",
        "reduce_scatter",
        "round_robin_gradients",
        "stage",
        "stage3_gather_16bit_weights_on_model_save",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_module_granularity_threshold",
        "stage3_param_persistence_threshold",
        "stage3_prefetch_bucket_size",
        "sub_group_size",
        "use_multi_rank_bucket_allreduce",
    }
)
"""Keys of ``zero_optimization`` that are handed on."""

OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "sgd": "sgd"}
"""DeepSpeed's ``optimizer.type``, in small letters → `TrainerOptions.optimizer`."""

_TAKEN = frozenset(
    {
        "bf16",
        "communication_data_type",
        "fp16",
        "gradient_clipping",
        "gradient_predivide_factor",
        "optimizer",
        "prescale_gradients",
        "scheduler",
        "steps_per_print",
        "wall_clock_breakdown",
        "zero_allow_untested_optimizer",
        "zero_optimization",
    }
)
_REFUSED = {
    "train_batch_size": "rows come from the flow; leave it out",
    "train_micro_batch_size_per_gpu": "set options.micro_batch_rows instead",
    "gradient_accumulation_steps": "micro-batches are added up by themselves; set options.micro_batch_rows",
    "activation_checkpointing": "set options.gradient_checkpointing instead",
    "amp": "set options.dtype, or bf16 or fp16 here, instead",
    "torch_autocast": "set options.dtype, or bf16 or fp16 here, instead",
    "checkpoint": "the engine takes snapshots, by its own settings",
    "elasticity": "the job file's world_size says how many ranks there are",
    "data_types": "gradients are added up in the type that DeepSpeed chooses",
}
_ZERO_REFUSED = {
    "offload_optimizer": "a snapshot would not reach what is offloaded",
    "offload_param": "a snapshot would not reach what is offloaded",
    "cpu_offload": "a snapshot would not reach what is offloaded",
    "elastic_checkpoint": "the engine takes snapshots, by its own settings",
    "load_from_fp32_weights": "the engine takes snapshots, by its own settings",
    "zero_hpz_partition_size": "snapshots know one partition of a parameter",
    "zero_quantized_weights": "a restored group would not go on bit for bit",
    "zero_quantized_gradients": "a restored group would not go on bit for bit",
    "compute_grad_norm": "the norm is a metric, and stops a job whose gradients are not finite",
}


def checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without what says ``"auto"``, which is left to DeepSpeed or to the role's options.

    Raises `ValueError` for a key that is unknown or cannot be had, with the reason.
    """
    found = {key: value for key, value in _without_auto(config).items() if value is not None}
    for key in found:
        if key in _REFUSED:
            raise ValueError(f"{key!r} cannot be set: {_REFUSED[key]}")
        if key not in _TAKEN:
            raise ValueError(f"{key!r} is not supported; {nearest(key, _TAKEN)}")
    zero = found.setdefault("zero_optimization", {})
    if not isinstance(zero, Mapping):
        raise ValueError("zero_optimization is a mapping, such as {stage: 2}")
    for key in zero:
        if key in _ZERO_REFUSED:
            raise ValueError(f"zero_optimization.{key} cannot be set: {_ZERO_REFUSED[key]}")
        if key not in ZERO:
            raise ValueError(f"zero_optimization.{key} is not supported; {nearest(key, ZERO)}")
    stage = zero.setdefault("stage", 2)
    if stage not in (1, 2, 3) or isinstance(stage, bool):
        raise ValueError(f"zero_optimization.stage is 1, 2 or 3, not {stage!r}; without ZeRO use the workload ddp")
    on = [key for key in ("bf16", "fp16") if _enabled(found, key)]
    if len(on) > 1:
        raise ValueError("bf16 and fp16 cannot both be enabled")
    kind = _mapping(found, "optimizer").get("type")
    if "optimizer" in found and str(kind).lower() not in OPTIMIZERS:
        raise ValueError(
            f"optimizer.type {kind!r} is not supported; it is one of Adam, AdamW and SGD, which are torch's here "
            "(DeepSpeed's own are compiled on the machine)"
        )
    if "scheduler" in found and "type" not in _mapping(found, "scheduler"):
        raise ValueError("scheduler has no type, such as WarmupLR")
    return found


def _without_auto(value: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_auto(item) if isinstance(item, Mapping) else item for key, item in value.items() if item != "auto"
    }


def _mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = config.get(key, {})
    if not isinstance(found, Mapping):
        raise ValueError(f"{key} is a mapping, not {found!r}")
    return found


def _enabled(config: Mapping[str, Any], key: str) -> bool:
    return bool(_mapping(config, key).get("enabled", False))
