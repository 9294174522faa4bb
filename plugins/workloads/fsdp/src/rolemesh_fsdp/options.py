"""The options of the job file, checked in the driver: nothing here imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator

from rolemesh.api.import_ref import ImportRef
from rolemesh.errors import nearest

__all__ = ["CausalLMOptions", "FSDPOptions", "GRPOOptions", "LogprobsOptions"]

_CAUSAL_LM = "rolemesh_fsdp.losses:causal_lm"


class CausalLMOptions(BaseModel, extra="forbid"):
    """`loss_options` of ``rolemesh_fsdp.losses:causal_lm``."""

    pad_to: int | None = Field(
        None, gt=0, description="pad rows to this many tokens instead of to the longest row of the micro-batch"
    )


class GRPOOptions(BaseModel, extra="forbid"):
    """`loss_options` of ``rolemesh_fsdp.losses:grpo``."""

    clip: float = Field(0.2, gt=0, description="the probability ratio is clipped to 1 ± clip")
    kl_coef: float = Field(0.0, ge=0, description="weight of the KL penalty against the column `ref_logprobs`")
    temperature: float = Field(1.0, gt=0, description="the temperature that the completions were sampled at")
    pack: bool = Field(
        True,
        description="one packed row with the common prefix computed once; false: padded rows, for models whose "
        "attention takes no 4-D mask",
    )
    probe_rows: int = Field(
        4, gt=0, description="rows of a micro-batch without any advantage that are still computed, for the metrics"
    )


class LogprobsOptions(BaseModel, extra="forbid"):
    """How `logprobs` computes, whatever the role's loss is: a reference model need not have one of its own."""

    temperature: float | None = Field(
        None, gt=0, description="the temperature that the completions were sampled at; null: the loss's, or 1"
    )
    pack: bool | None = Field(None, description="as `pack` of the loss grpo; null: the loss's, or true")


LOSS_OPTIONS: dict[str, type[BaseModel]] = {_CAUSAL_LM: CausalLMOptions, "rolemesh_fsdp.losses:grpo": GRPOOptions}


class FSDPOptions(BaseModel, extra="forbid"):
    """Options of the `fsdp` workload."""

    model: str = Field(description="folder of a Hugging Face causal language model, relative to the job file")
    init: Literal["pretrained", "random"] = Field(
        "pretrained", description="pretrained: load the folder's weights; random: seeded weights from its config.json"
    )
    init_seed: int | None = Field(None, ge=0, description="seed of `init: random`; from the job's seed if absent")
    loss: ImportRef = Field(
        ImportRef(_CAUSAL_LM),
        description="`module:name` or `file.py:name` of a function like rolemesh_fsdp.LossFunction",
    )
    loss_options: dict[str, Any] = Field(default_factory=dict, description="passed to the loss as `ctx.options`")
    logprobs: LogprobsOptions = Field(
        default_factory=LogprobsOptions, description="how the operator `logprobs` computes, whatever the loss is"
    )
    lr: float = Field(1e-5, gt=0, description="AdamW's learning rate after the warm-up")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW's decay rates of the two moments")
    eps: float = Field(1e-8, gt=0, description="AdamW's epsilon")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's decay of parameters of two or more dimensions")
    warmup_steps: int = Field(0, ge=0, description="updates over which the learning rate rises linearly to `lr`")
    clip_norm: float | None = Field(1.0, gt=0, description="largest global gradient norm; null for no clipping")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="what forward, backward and `weights` are in; parameters, gradient sums and optimizer are float32",
    )
    micro_batch_rows: int | None = Field(
        None, gt=0, description="rows per forward and backward pass; null: all rows of the rank at once"
    )
    gradient_checkpointing: bool = Field(False, description="recompute activations in the backward pass to save memory")
    reshard_after_forward: bool = Field(
        True, description="free gathered parameters between forward and backward: less memory, one more gather"
    )
    attention: Literal["sdpa", "eager"] = Field("sdpa", description="transformers' attention implementation")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda if the role was given GPUs")
    timeout_s: float = Field(600.0, gt=0, description="seconds after which a collective that does not end is an error")

    @property
    def sampled_at(self) -> float:
        """The temperature of the distribution that `logprobs` gives log-probabilities of."""
        own = self.logprobs.temperature
        return float(own if own is not None else self.loss_options.get("temperature", 1.0))

    @property
    def packed(self) -> bool:
        """Whether `logprobs` packs the rows of a micro-batch into one."""
        own = self.logprobs.pack
        return bool(own if own is not None else self.loss_options.get("pack", True))

    @field_validator("model")
    @classmethod
    def _relative_to_job(cls, model: str, info: ValidationInfo) -> str:
        base = (info.context or {}).get("base", ".")
        return str(Path(base, Path(model).expanduser()).resolve())

    @field_validator("betas")
    @classmethod
    def _are_decay_rates(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"each beta must be in [0, 1), got {list(betas)}")
        return betas

    @field_validator("loss_options")
    @classmethod
    def _fit_the_loss(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        kind = LOSS_OPTIONS.get(str(info.data.get("loss")))
        if kind is None:
            return options
        try:
            return kind.model_validate(options).model_dump(exclude_unset=True)
        except ValidationError as error:
            raise ValueError("; ".join(_explain(kind, dict(e)) for e in error.errors())) from None


def _explain(kind: type[BaseModel], error: dict[str, Any]) -> str:
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"unknown key {path!r}; {nearest(path, kind.model_fields)}"
    return f"{path}: {error['msg']}"
