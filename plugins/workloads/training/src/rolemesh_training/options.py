"""The options that trainers share, checked in the driver. This module does not import torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator, model_validator

from rolemesh.api.import_ref import ImportRef
from rolemesh.errors import nearest
from rolemesh_training.lengths import TokenColumn

__all__ = [
    "ONE_THREAD",
    "CausalLMOptions",
    "ClassificationOptions",
    "DPOOptions",
    "DistillOptions",
    "GRPOOptions",
    "HuggingFaceOptions",
    "LoRAOptions",
    "LogprobsOptions",
    "PolicyOptions",
    "TrainerOptions",
    "ValueOptions",
    "folder_of",
    "loss_kind",
    "token_column",
]

ONE_THREAD = "01"
"""Default of ``OMP_NUM_THREADS``, written as no person writes it, so that a rank can tell their setting from it."""
_LOSSES = "rolemesh_training.losses:"
_TRAINED: dict[str, Any] = {"needs": "frozen = false"}
_ADAM: dict[str, Any] = {"needs": ["frozen = false", "optimizer = adamw|adam"]}
_SGD: dict[str, Any] = {"needs": ["frozen = false", "optimizer = sgd"]}
_SCHEDULED: dict[str, Any] = {"needs": ["frozen = false", "schedule != constant"]}
_WSD: dict[str, Any] = {"needs": ["frozen = false", "schedule = wsd"]}


_PACK: Any = Field(
    True,
    description="one packed row with the common prefix computed once, unless a measurement at the start shows that the "
    "model gives other results then (the job warns, and rows are padded); false: padded rows",
)


class CausalLMOptions(BaseModel, extra="forbid"):
    """`loss_options` of ``rolemesh_training.losses:causal_lm``."""

    pad_to: int | None = Field(
        None, gt=0, description="pad rows to this many tokens instead of to the longest row of the micro-batch"
    )


class _Completions(BaseModel, extra="forbid"):
    temperature: float | None = Field(
        None,
        gt=0,
        description="the temperature of the sampled completions; null: that in their column `sampling`, or 1 (for "
        "`dpo` always 1)",
    )
    pack: bool = _PACK


class PolicyOptions(_Completions):
    """`loss_options` of ``rolemesh_training.losses:ppo``."""

    clip: float = Field(0.2, gt=0, description="the probability ratio is clipped to 1 ± clip")
    clip_high: float | None = Field(
        None, gt=0, description="the ratio's upper bound is 1 + clip_high instead (DAPO's clip-higher); null: 1 + clip"
    )
    objective: Literal["clipped", "cispo"] = Field(
        "clipped",
        description="clipped: the smaller of the ratio's and the clipped ratio's objective (PPO, GRPO); cispo: the "
        "token's log-probability, weighted with the ratio up to 1 + clip_high, so that each token keeps its gradient "
        "(MiniMax-M1)",
    )
    """TRL calls these `loss_type` dapo and cispo; its `epsilon_high` of cispo is 1 + `clip_high`."""
    kl_coef: float = Field(0.0, ge=0, description="weight of the KL penalty against the column `ref_logprobs`")
    importance_sampling: Literal["token", "sequence"] | None = Field(
        None,
        description="decoupled PPO: the ratio is taken against the trainer's own log-probabilities before the update "
        "(π_old), and each token's objective is multiplied by π_old / π_sampler. token: of the token; sequence: their "
        "product over the row. null: token if importance_sampling_cap is set; without a cap the ratio is taken against "
        "the sampler's",
    )
    """π_old apart from π_sampler: Hilton et al., arXiv:2110.00641, equation 2; for rows of older weights: Fu et al.,
    "AReaL", arXiv:2505.24298, equation 5. AReaL calls it `use_decoupled_loss`, verl `rollout_is` token or sequence."""
    importance_sampling_cap: float | None = Field(
        None,
        gt=0,
        description="largest importance weight π_old / π_sampler, e.g. 2 or 3 (truncated importance sampling); null: "
        "weights have no cap",
    )
    """Capped weights: Espeholt et al., "IMPALA", arXiv:1802.01561, section 4.1. Between an engine and a trainer: Yao et
    al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025. TRL calls it
    `vllm_importance_sampling_mode: token_truncate` or `sequence_truncate` with `vllm_importance_sampling_clip_max`,
    verl `rollout_is_threshold`."""
    over_cap: Literal["truncate", "mask"] = Field(
        "truncate",
        description="a weight above importance_sampling_cap becomes the cap (truncate), or 0, so that its tokens are "
        "not trained (mask)",
    )
    """TRL's modes `token_mask` and `sequence_mask`; AReaL's `behav_imp_weight_mode` has the same names."""
    ratio: Literal["token", "sequence"] = Field(
        "token", description="token: a ratio for each token; sequence: their geometric mean for the completion (GSPO)"
    )
    aggregation: Literal["token_mean", "sequence_mean", "constant"] | None = Field(
        None,
        description="how tokens are aggregated. token_mean: the mean over all tokens (DAPO). sequence_mean: the mean "
        "over rows of each row's mean (GRPO, GSPO). constant: the sum over tokens, divided by rows times "
        "`aggregation_length` (Dr. GRPO). null: token_mean, or sequence_mean with ratio: sequence",
    )
    """verl calls these `loss_agg_mode` token-mean, seq-mean-token-mean and seq-mean-token-sum-norm; TRL `loss_type`
    dapo, grpo and dr_grpo. Dr. GRPO: Liu et al., arXiv:2503.20783."""
    aggregation_length: int | None = Field(
        None, gt=0, description="tokens that aggregation: constant divides a row's sum by: the rollout's max_tokens"
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.aggregation == "constant") != (self.aggregation_length is not None):
            raise ValueError("aggregation: constant and aggregation_length go together")
        if self.over_cap == "mask" and self.importance_sampling_cap is None:
            raise ValueError("over_cap: mask has no effect without importance_sampling_cap")
        return self

    @property
    def corrects(self) -> bool:
        """Return whether the loss multiplies objectives by importance weights."""
        return self.importance_sampling is not None or self.importance_sampling_cap is not None


class GRPOOptions(PolicyOptions):
    """`loss_options` of ``rolemesh_training.losses:grpo``."""

    probe_rows: int = Field(
        4,
        gt=0,
        description="rows of a micro-batch without any advantage that are still computed, for the metrics; with "
        "`kl_coef` all rows are computed",
    )


class DPOOptions(_Completions):
    """`loss_options` of ``rolemesh_training.losses:dpo``."""

    beta: float = Field(0.1, gt=0, description="strength of the pull towards the reference")


class ValueOptions(BaseModel, extra="forbid"):
    """`loss_options` of ``rolemesh_training.losses:value``."""

    clip: float | None = Field(
        0.2, gt=0, description="a value may leave the old one (the column `values`) by this much; null: no clipping"
    )
    pack: bool = _PACK


class ClassificationOptions(BaseModel, extra="forbid"):
    """`loss_options` of ``rolemesh_training.losses:classification``, which has none."""


class DistillOptions(BaseModel, extra="forbid"):
    """`loss_options` of ``rolemesh_training.losses:distill``."""

    temperature: float = Field(1.0, gt=0, description="teacher and student are compared at this temperature")
    alpha: float = Field(0.0, ge=0, le=1, description="part of the loss that is the cross-entropy of the text's tokens")


class LogprobsOptions(BaseModel, extra="forbid"):
    """Settings of `logprobs` that do not depend on the role's loss, because a reference model may have none."""

    temperature: float | None = Field(
        None,
        gt=0,
        description="the temperature of the sampled completions; null: the loss's, or that in the rows' column "
        "`sampling`, or 1",
    )
    pack: bool | None = Field(None, description="as `pack` of the loss grpo; null: the loss's, or true")


class LoRAOptions(BaseModel, extra="forbid"):
    """Low-rank adapters, trained beside the model's own weights: Hu et al., arXiv:2106.09685."""

    rank: int = Field(8, gt=0, description="the adapters' inner dimension")
    alpha: float = Field(16.0, gt=0, description="the adapters' contribution is multiplied by alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of an adapter's inputs left out in training")
    targets: list[str] | Literal["all-linear"] = Field(
        "all-linear",
        description="names of the linear layers with an adapter, such as q_proj or layers.0.self_attn.q_proj (a name "
        "matches the end of a layer's full name); all-linear: all but the head",
    )


LOSS_OPTIONS: dict[str, type[BaseModel]] = {
    f"{_LOSSES}causal_lm": CausalLMOptions,
    f"{_LOSSES}classification": ClassificationOptions,
    f"{_LOSSES}distill": DistillOptions,
    f"{_LOSSES}dpo": DPOOptions,
    f"{_LOSSES}grpo": GRPOOptions,
    f"{_LOSSES}ppo": PolicyOptions,
    f"{_LOSSES}value": ValueOptions,
}


def loss_kind(loss: object) -> type[BaseModel]:
    """Return the model of the `loss_options` of a loss of this package; `BaseModel` for other losses."""
    return LOSS_OPTIONS.get(str(loss), BaseModel)


def token_column(loss: object) -> TokenColumn | None:
    """Return the column with the tokens that a loss of this package reads; None for other losses."""
    return _TOKENS.get(str(loss).removeprefix(_LOSSES))


_TOKENS: dict[str, TokenColumn] = {
    **dict.fromkeys(("causal_lm", "classification", "distill"), "input_ids"),
    **dict.fromkeys(("grpo", "ppo", "value"), "completion_ids"),
    "dpo": "chosen_ids",
}
_COMPARING = frozenset(f"{_LOSSES}{name}" for name in ("dpo", "grpo", "ppo", "value"))
"""Losses that compare with values of a sampler, a reference or an earlier step, which were computed without dropout."""


class TrainerOptions(BaseModel, extra="forbid"):
    """Options of any trainer, whatever its model is."""

    loss: ImportRef = Field(
        ImportRef(f"{_LOSSES}causal_lm"),
        description="`module:name` or `file.py:name` of a function like rolemesh_training.LossFunction",
    )
    loss_options: dict[str, Any] = Field(default_factory=dict, description="passed to the loss as `ctx.options`")
    optimizer: Literal["adamw", "adam", "sgd"] = Field(
        "adamw", description="torch's optimizer", json_schema_extra=_TRAINED
    )
    lr: float = Field(
        1e-5, gt=0, description="the highest learning rate, after the warm-up", json_schema_extra=_TRAINED
    )
    betas: tuple[float, float] = Field(
        (0.9, 0.95), description="Adam's decay rates of the two moments", json_schema_extra=_ADAM
    )
    eps: float = Field(1e-8, gt=0, description="Adam's epsilon", json_schema_extra=_ADAM)
    momentum: float = Field(0.9, ge=0, lt=1, description="SGD's momentum", json_schema_extra=_SGD)
    weight_decay: float = Field(
        0.0,
        ge=0,
        description="decay of matrices: parameters of two or more dimensions, except biases",
        json_schema_extra=_TRAINED,
    )
    warmup_steps: int = Field(
        0, ge=0, description="updates over which the learning rate rises linearly to `lr`", json_schema_extra=_TRAINED
    )
    schedule: Literal["constant", "linear", "cosine", "wsd"] = Field(
        "constant",
        description="how the learning rate falls after the warm-up; wsd: only over the last `decay_updates`",
        json_schema_extra=_TRAINED,
    )
    schedule_updates: int | None = Field(
        None, gt=0, description="the update at which the schedule ends", json_schema_extra=_SCHEDULED
    )
    decay_updates: int = Field(
        0, ge=0, description="for `schedule: wsd`: number of updates over which it falls", json_schema_extra=_WSD
    )
    min_lr_ratio: float = Field(
        0.0, ge=0, le=1, description="share of `lr` at the schedule's end", json_schema_extra=_SCHEDULED
    )
    clip_norm: float | None = Field(
        1.0, gt=0, description="largest global gradient norm; null for no clipping", json_schema_extra=_TRAINED
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="what forward, backward and `weights` are in; parameters, gradient sums and optimizer are float32",
    )
    micro_batch_rows: int | None = Field(
        None,
        gt=0,
        description="rows per forward and backward pass, whose gradients are added up; null: all rows at once",
    )
    mini_batches: int = Field(
        1, gt=0, description="into how many parts, an update each, a rank's rows are cut", json_schema_extra=_TRAINED
    )
    epochs: int = Field(1, gt=0, description="how often `train` goes through its batch", json_schema_extra=_TRAINED)
    max_staleness: int | None = Field(
        None,
        ge=0,
        description="`train` drops a row with a token that was sampled with weights more than this number of versions "
        "older than the trainer's, counts it (rows_stale) and warns once; null: keep every row. It takes the columns "
        "`weight_versions` or `weight_version`",
        json_schema_extra=_TRAINED,
    )
    dropout: bool | None = Field(
        None,
        description="whether the model's dropout acts in training; null: not with the losses grpo, ppo, dpo and value, "
        "which compare with what was computed without it",
        json_schema_extra=_TRAINED,
    )
    frozen: bool = Field(
        False, description="never trained (a reference): it keeps no optimizer state and gives no snapshots"
    )
    if_nothing_learned: Literal["fail", "done"] = Field(
        "fail", description="end of a job whose updates changed no weight", json_schema_extra=_TRAINED
    )
    deterministic: bool = Field(
        True,
        description="repeat every result bit for bit; false: use faster kernels on a GPU, whose results differ in the "
        "last bits from run to run, so the result after a restart differs from one without",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda if the role was given GPUs")
    peak_tflops: float | None = Field(
        None,
        gt=0,
        description="peak of a rank's device in TFLOP/s, for the metric mfu; null: that of common GPUs in bfloat16, by "
        "name, else no mfu",
        json_schema_extra=_TRAINED,
    )
    timeout_s: float = Field(600.0, gt=0, description="seconds after which a collective that does not end is an error")

    @property
    def drops(self) -> bool:
        """Return whether dropout is active in training."""
        return self.dropout if self.dropout is not None else str(self.loss) not in _COMPARING

    @property
    def measured(self) -> bool:
        """Return whether the start measures what the model does with packed rows: a loss over completions, a loss of
        the job's own, or a reference will ask for it."""
        return self.frozen or str(self.loss) in _COMPARING or str(self.loss) not in LOSS_OPTIONS

    @property
    def corrects(self) -> bool:
        """Return whether the loss is a policy loss of this package that multiplies by importance weights."""
        kind = loss_kind(self.loss)
        return issubclass(kind, PolicyOptions) and kind.model_validate(self.loss_options).corrects

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

    @model_validator(mode="after")
    def _the_schedule_has_an_end(self) -> Self:
        if self.schedule != "constant":
            if self.schedule_updates is None:
                raise ValueError(f"schedule {self.schedule} needs schedule_updates: the update at which it ends")
            if self.schedule == "wsd" and not self.decay_updates:
                raise ValueError("schedule wsd needs decay_updates: over how many updates the learning rate falls")
            if self.schedule_updates <= self.warmup_steps + self.decay_updates * (self.schedule == "wsd"):
                raise ValueError(
                    f"schedule_updates {self.schedule_updates} leaves nothing between the warm-up of "
                    f"{self.warmup_steps} updates and the end of the schedule"
                )
        return self


class HuggingFaceOptions(TrainerOptions):
    """Options of a trainer of Hugging Face models."""

    model: str = Field(description="folder of a Hugging Face model, relative to the job file")
    init: Literal["pretrained", "random"] = Field(
        "pretrained", description="pretrained: load the folder's weights; random: seeded weights from its config.json"
    )
    init_seed: int | None = Field(
        None,
        ge=0,
        description="seed of `init: random`; from the job's seed if absent",
        json_schema_extra={"needs": "init = random or lora or task != causal_lm"},
    )
    task: Literal["causal_lm", "classification", "value"] = Field(
        "causal_lm",
        description="the model's head: next tokens; one label for a row; or a value for each token (a critic)",
    )
    max_length: int | None = Field(
        None,
        gt=0,
        description="maximum number of tokens of a row, prompt and completion together; null: the number of positions "
        "in the model's config",
    )
    too_long: Literal["drop", "truncate", "fail"] = Field(
        "drop",
        description="what `train`, `logprobs`, `values` and `scores` do with a longer row: drop: leave it out, also of "
        "their result, count it, and warn once; truncate: cut its end (drop a pair of dpo); fail: end the job. A row "
        "without tokens, or with an empty prompt, is dropped, or fails",
    )
    logprobs: LogprobsOptions = Field(
        default_factory=LogprobsOptions,
        description="settings of the operator `logprobs`, which do not depend on the loss",
    )
    lora: LoRAOptions | None = Field(
        None,
        description="train adapters only: only they have optimizer states, are in snapshots, and are returned by "
        "`weights`; {} for the defaults; needs peft",
    )
    gradient_checkpointing: bool = Field(
        False, description="recompute activations in the backward pass to save memory", json_schema_extra=_TRAINED
    )
    attention: Literal["sdpa", "eager"] = Field("sdpa", description="transformers' attention implementation")

    @model_validator(mode="after")
    def _adapters_have_a_base(self) -> Self:
        if self.lora is not None and self.frozen:
            raise ValueError("a frozen role trains nothing: leave lora out, and it is the model without adapters")
        if self.lora is not None and self.init == "random":
            raise ValueError("lora adapts the weights of options.model, which init: random does not read")
        if self.lora is not None and self.lora.dropout and not self.drops:
            what = f"lora.dropout {self.lora.dropout} has no effect with the loss {str(self.loss).rpartition(':')[2]}"
            raise ValueError(f"{what}, which compares with what was computed without dropout: set dropout to true")
        return self

    @property
    def sampled_at(self) -> float | None:
        """Return the temperature at which `logprobs` computes, if the options state one; otherwise the rows say it.

        A loss that samples nothing, such as `distill`, has no such temperature.
        """
        meant = str(self.loss) not in LOSS_OPTIONS or issubclass(loss_kind(self.loss), _Completions)
        of_loss = self.loss_options.get("temperature") if meant else None
        return self.logprobs.temperature or of_loss

    @property
    def packed(self) -> bool:
        """Return whether `logprobs` and `values` pack the rows of a micro-batch into one, if the model allows it."""
        own = self.logprobs.pack
        return bool(own if own is not None else self.loss_options.get("pack", True))

    @field_validator("model")
    @classmethod
    def _relative_to_job(cls, model: str, info: ValidationInfo) -> str:
        return folder_of(model, info)


def folder_of(model: str, info: ValidationInfo) -> str:
    """Return the folder's absolute path. A relative one starts at the job file."""
    base = (info.context or {}).get("base", ".")
    return str(Path(base, os.path.expanduser(model)).resolve())


def _explain(kind: type[BaseModel], error: dict[str, Any]) -> str:
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"unknown key {path!r}; {nearest(path, kind.model_fields)}"
    return f"{path}: {error['msg']}"
