"""The options of the job file, checked in the driver: nothing here imports torch or deepspeed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from rolemesh_deepspeed.config import OPTIMIZERS, asks_for_nothing, checked
from rolemesh_training import HuggingFaceOptions

__all__ = ["DeepSpeedOptions"]

_OPTIMIZER = {"lr": "lr", "betas": "betas", "eps": "eps", "weight_decay": "weight_decay", "momentum": "momentum"}


class DeepSpeedOptions(HuggingFaceOptions):
    """Options of the `deepspeed` workload."""

    config: dict[str, Any] = Field(
        default_factory=lambda: checked({}),
        validate_default=True,
        description="DeepSpeed's own config, or its JSON file relative to the job file: the ZeRO stage (2 if it does "
        "not say), bf16 or fp16, optimizer, scheduler; the README says what is taken",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(  # type: ignore[assignment]
        "float32", description="type of forward, backward and `weights`; bf16 and fp16 in config set the same"
    )

    schedule_updates: int | None = Field(
        None,
        gt=0,
        description="the update at which the schedule ends; also the value of an auto `total_num_steps` in config",
        json_schema_extra={"needs": ["frozen = false", "schedule != constant or config.scheduler"]},
    )

    @property
    def stage(self) -> int:
        """Return the stage of ZeRO: 1 divides the optimizer's state, 2 also the gradients, 3 also the parameters."""
        return int(self.config["zero_optimization"]["stage"])

    @field_validator("config", mode="before")
    @classmethod
    def _of_a_file(cls, config: Any, info: ValidationInfo) -> Any:
        if not isinstance(config, (str, Path)):
            return config
        path = Path((info.context or {}).get("base", "."), os.path.expanduser(config))
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"DeepSpeed's config {path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"DeepSpeed's config {path} is no JSON: {error}") from None

    @field_validator("config")
    @classmethod
    def _is_taken(cls, config: dict[str, Any]) -> dict[str, Any]:
        return checked(config)

    @model_validator(mode="after")
    def _take_what_the_config_says(self) -> Self:
        """Copy settings of the config that are also options to the options. A contradiction is an error."""
        said: dict[str, Any] = {}
        config = dict(self.config)
        if self.stage == 0 and not self.frozen:
            raise ValueError("zero_optimization.stage is 1, 2 or 3, not 0; without ZeRO use the workload ddp")
        for key, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
            if config.get(key, {}).get("enabled"):
                said["dtype"] = dtype
        if config.get("gradient_clipping") or (
            "gradient_clipping" in config and "clip_norm" not in self.model_fields_set
        ):
            said["clip_norm"] = config["gradient_clipping"] or None
        if "optimizer" in config:
            optimizer = config["optimizer"]
            params = optimizer.get("params") or {}
            kind = OPTIMIZERS[str(optimizer["type"]).lower()]
            # DeepSpeed's Adam decays weights as AdamW does unless adam_w_mode says otherwise.
            said["optimizer"] = "adamw" if kind == "adam" and params.get("adam_w_mode", True) else kind
            for key, value in params.items():
                if key in _OPTIMIZER:
                    said[_OPTIMIZER[key]] = tuple(value) if key == "betas" else value
                elif not asks_for_nothing(f"optimizer.params.{key}", value):
                    raise ValueError(
                        f"config: optimizer.params.{key} is not supported; it is one of {', '.join(_OPTIMIZER)}"
                    )
        if "scheduler" in config:
            scheduler = _filled_in(config["scheduler"], self, said)
            object.__setattr__(self, "config", {**config, "scheduler": scheduler})
            highest = scheduler["params"].get("warmup_max_lr")
            if isinstance(highest, (int, float)):
                said["lr"] = highest
            warmup = scheduler["params"].get("warmup_num_steps")
            if self.schedule != "constant" or self.warmup_steps not in (0, warmup):
                raise ValueError("the learning rate is that of config's scheduler; leave schedule and warmup_steps out")
        for name, value in said.items():
            if name in self.model_fields_set and getattr(self, name) != value:
                raise ValueError(f"{name} is {getattr(self, name)!r} as an option and {value!r} in config; say it once")
            object.__setattr__(self, name, value)
        return self


def _filled_in(scheduler: Mapping[str, Any], options: DeepSpeedOptions, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return DeepSpeed's scheduler; the options replace params that are ``"auto"``.

    The options are lr, warmup_steps and schedule_updates; DeepSpeed needs at least one step of warm-up. Raises
    `ValueError` if a needed option is not set.
    """
    params = {key: value for key, value in (scheduler.get("params") or {}).items() if value is not None}
    auto = {
        "warmup_max_lr": said.get("lr", options.lr),
        "warmup_num_steps": max(1, options.warmup_steps),
        "total_num_steps": options.schedule_updates,
    }
    for key in [key for key, value in params.items() if value == "auto"]:
        value = auto.get(key)
        if key == "total_num_steps" and value is None:
            raise ValueError("config: scheduler.params.total_num_steps is auto; set the option schedule_updates")
        params.pop(key)
        if value is not None:
            params[key] = value
    return {**scheduler, "params": params}
