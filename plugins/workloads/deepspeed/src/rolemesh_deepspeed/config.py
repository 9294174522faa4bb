"""DeepSpeed's own config: the supported keys, and the reasons why others are refused. Pure; this module does not import
deepspeed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolemesh.errors import nearest

__all__ = ["DEFAULTS", "OPTIMIZERS", "ZERO", "asks_for_nothing", "checked"]

ZERO = frozenset(
    {
        "allgather_bucket_size",
        "allgather_partitions",
        "contiguous_gradients",
        "ignore_unused_parameters",
        "memory_efficient_linear",
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
"""Keys of ``zero_optimization`` that are passed on."""

OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "sgd": "sgd"}
"""DeepSpeed's ``optimizer.type`` in lower case → `TrainerOptions.optimizer`."""

DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "activation_checkpointing.number_checkpoints": (False,),
    "aio.block_size": (1 << 20,),
    "aio.intra_op_parallelism": (1,),
    "aio.overlap_events": (True,),
    "aio.queue_depth": (8,),
    "aio.thread_count": (1,),
    "checkpoint.tag_validation": ("Warn", "WARN", "warn", "Ignore", "IGNORE", "ignore"),
    "gradient_accumulation_steps": (1,),
    "gradient_allreduce_op": ("mean",),
    "optimizer.params.adam_w_mode": (True, False),
    "optimizer.params.bias_correction": (True,),
    "optimizer.params.dampening": (0,),
    "optimizer.params.set_grad_none": (True, False),
    "optimizer.params.torch_adam": (True, False),
    "pipeline.activation_checkpoint_interval": (0,),
    "pipeline.grad_partitioned": (True,),
    "pipeline.partition": ("best",),
    "pipeline.pipe_partitioned": (True,),
    "seq_parallel_communication_data_type": ("fp32",),
    "sequence_parallel_size": (1,),
    "tensor_parallel.autotp_size": (0, 1),
    "tensor_parallel.tp_size": (1,),
    "timers.throughput.enabled": (True, False),
    "timers.throughput.synchronized": (True, False),
    "zero_force_ds_cpu_optimizer": (True, False),
    "zero_optimization.compute_grad_norm": (True,),
    "zero_optimization.load_from_fp32_weights": (True,),
    "zero_optimization.mics_shard_size": (-1,),
    "zero_optimization.offload_optimizer.device": ("none",),
    "zero_optimization.offload_param.device": ("none",),
    "zero_optimization.override_module_apply": (True,),
    "zero_optimization.zero_hpz_partition_size": (1,),
}
"""Dotted path of a key → its values without effect. For any other key, false and null have no effect."""

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
_SCALARS = _TAKEN - {"bf16", "fp16", "optimizer", "scheduler", "zero_optimization"}
_SWITCHES = {
    **dict.fromkeys(
        (
            "amp",
            "autotuning",
            "comet",
            "comms_logger",
            "csv_monitor",
            "curriculum_learning",
            "data_efficiency",
            "eigenvalue",
            "elasticity",
            "flops_profiler",
            "hybrid_engine",
            "nebula",
            "progressive_layer_drop",
            "quantize_training",
            "tensorboard",
            "torch_autocast",
            "wandb",
        ),
        ("enabled",),
    ),
    "compile": ("enabled", "deepcompile"),
    "zero_optimization.offload_optimizer": ("device",),
    "zero_optimization.offload_param": ("device",),
}
"""Section → keys that switch it on. Without one of them, the section has no effect, whatever else it contains."""
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
    "aio": "it is for offloading, which a snapshot would not reach",
    "compile": "DeepSpeed's compiler rewrites the model, which was never tried with snapshots",
    "tensor_parallel": "each rank has its own rows; ranks do not share a layer",
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


def asks_for_nothing(path: str, value: Any) -> bool:
    """Return whether DeepSpeed does the same without this key, because the value is its default or its section is off.

    `path` is the dotted path of the key in DeepSpeed's config, such as ``zero_optimization.offload_param``.
    """
    if value is None or value == "auto":
        return True
    if isinstance(value, Mapping):
        switches = _SWITCHES.get(path, ("enabled", "shared_parameters"))
        asked = [name for name in switches if name in value]
        if not asked and path not in _SWITCHES:
            asked = list(value)
        return all(asks_for_nothing(f"{path}.{name}", value[name]) for name in asked)
    if isinstance(value, (list, tuple)):
        return not value
    return value in DEFAULTS[path] if path in DEFAULTS else value is False


def checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config without keys that have no effect, and without ``"auto"``, for which DeepSpeed or the role's
    options decide.

    ``"auto"`` stays in ``scheduler.params``, where `DeepSpeedOptions` replaces it. Raises `ValueError` with the reason
    for a key with an effect that is unknown or unsupported.
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        known = key in _TAKEN or key in _REFUSED or key in _SWITCHES
        if asks_for_nothing(key, value) and (known or value != {}) and (key not in _SCALARS or value in (None, "auto")):
            continue
        if key in _REFUSED:
            raise ValueError(f"{key!r} cannot be set: {_REFUSED[key]}")
        if key not in _TAKEN:
            raise ValueError(f"{key!r} is not supported; {nearest(key, _TAKEN)}")
        found[key] = value if key == "scheduler" else _without_auto(value)
    found["zero_optimization"] = _zero(config.get("zero_optimization"))
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


def _zero(given: Any) -> dict[str, Any]:
    """Return ``zero_optimization`` without keys that have no effect; stage 2 by default."""
    if given is None or given == "auto":
        given = {}
    if not isinstance(given, Mapping):
        raise ValueError("zero_optimization is a mapping, such as {stage: 2}")
    found: dict[str, Any] = {}
    for key, value in given.items():
        if value is None or value == "auto":
            continue
        if key in ZERO:
            found[key] = value
        elif not asks_for_nothing(f"zero_optimization.{key}", value):
            if key in _ZERO_REFUSED:
                raise ValueError(f"zero_optimization.{key} cannot be set: {_ZERO_REFUSED[key]}")
            raise ValueError(f"zero_optimization.{key} is not supported; {nearest(key, ZERO)}")
    stage = found.setdefault("stage", 2)
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        raise ValueError(f"zero_optimization.stage is 1, 2 or 3, not {stage!r}")
    return found


def _without_auto(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {key: _without_auto(item) for key, item in value.items() if item is not None and item != "auto"}


def _mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = config.get(key, {})
    if not isinstance(found, Mapping):
        raise ValueError(f"{key} is a mapping, not {found!r}")
    return found


def _enabled(config: Mapping[str, Any], key: str) -> bool:
    return bool(_mapping(config, key).get("enabled", False))
