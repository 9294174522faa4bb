"""The options of the job file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator

__all__ = ["NUCLEUS", "ONE_THREAD", "PENALTIES", "EngineOptions", "PrefillOptions", "VLLMOptions"]


ONE_THREAD = "01"
"""Default of ``OMP_NUM_THREADS``, written as no person writes it, so that a rank can tell their setting from it."""
NUCLEUS = ("top_p", "top_k", "min_p")
"""Options that exclude unlikely tokens."""
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias")
"""Options that change logits."""


_RANDOM: dict[str, Any] = {"needs": "temperature"}
"""Options without effect in greedy sampling, which gives the same completion each time."""


class EngineOptions(BaseModel, extra="forbid"):
    """Options of every role with an engine."""

    model: str = Field(description="folder of a Hugging Face causal language model, relative to the job file")
    chat_template: bool = Field(
        True, description="true: render `messages` with the model's chat template; false: their contents, line by line"
    )
    too_long: Literal["drop", "truncate", "fail"] = Field(
        "drop",
        description="what to do with a prompt that leaves no room for max_tokens: drop: make no completions, count it, "
        "and warn once; truncate: keep its last tokens, and a first token that opens every text; fail: end the job. "
        "An empty prompt is dropped, or fails",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = Field(
        None, description="the engine's number format; by default float32 on CPUs and auto (the model's) on GPUs"
    )
    threads: int | None = Field(
        None,
        gt=0,
        description="threads of the CPU engine; by default your `OMP_NUM_THREADS`, else the whole cores of "
        "`resources.cpu`, at least one",
    )
    batch_invariant: bool = Field(
        False,
        description="on GPUs: take kernels that give a token the same bits in every batch (vLLM's "
        "VLLM_BATCH_INVARIANT), and compute each prompt in one piece, without cached prefixes: slower, but the role "
        "counts as deterministic. On CPUs it always does, and this changes nothing",
    )
    engine: dict[str, Any] = Field(
        default_factory=dict,
        description="further arguments of vllm's engine (vllm.EngineArgs), checked against the installed version",
    )

    @field_validator("model")
    @classmethod
    def _relative_to_job(cls, model: str, info: ValidationInfo) -> str:
        base = (info.context or {}).get("base", ".")
        return str(Path(base, os.path.expanduser(model)).resolve())


class VLLMOptions(EngineOptions):
    """Options of the `vllm` and `vllm-decode` workloads."""

    samples: int = Field(
        1, gt=0, description="completions per prompt in `generate`; `evaluate` makes one", json_schema_extra=_RANDOM
    )
    max_tokens: int = Field(256, gt=0, description="longest completion, in tokens")
    temperature: float = Field(1.0, ge=0, description="sampling temperature of `generate`; 0 is greedy")
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="probability mass of the nucleus that `generate` samples from",
        json_schema_extra=_RANDOM,
    )
    top_k: int = Field(
        0,
        ge=-1,
        description="`generate` samples from this many likeliest tokens; 0 or -1: from all",
        json_schema_extra=_RANDOM,
    )
    min_p: float = Field(
        0.0,
        ge=0,
        le=1,
        description="`generate` leaves out tokens less likely than this share of the likeliest one's",
        json_schema_extra=_RANDOM,
    )
    repetition_penalty: float = Field(1.0, gt=0, description="vLLM's penalty for tokens of prompt and completion")
    presence_penalty: float = Field(0.0, ge=-2, le=2, description="vLLM's penalty for tokens of the completion")
    frequency_penalty: float = Field(0.0, ge=-2, le=2, description="as presence_penalty, for each time it occurs")
    logit_bias: dict[int, float] = Field(default_factory=dict, description="added to the logits of these token ids")
    min_tokens: int = Field(0, ge=0, description="minimum number of tokens of a completion")
    stop: list[str] = Field(default_factory=list, description="strings that end a completion; they are not in `text`")
    stop_token_ids: list[int] = Field(default_factory=list, description="token ids that end a completion")
    seed: int | None = Field(
        None, ge=0, description="base of the seeds of all samples instead of the job's seed", json_schema_extra=_RANDOM
    )

    update: Literal["drain", "between_turns", "between_tokens"] = Field(
        "drain",
        description="how new weights meet calls of `sample`. drain: a call waits for the weights of its "
        "caller's step; between_turns: running calls end with the old weights; between_tokens: they go on with the new",
    )

    @model_validator(mode="after")
    def _may_end_in_time(self) -> Self:
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens {self.min_tokens} is more than max_tokens {self.max_tokens}")
        return self

    def sampling(self, *, greedy: bool = False) -> dict[str, Any]:
        """Return the parameters of a completion's distribution: the temperature, and others that are not at their
        default.

        `greedy`: for `evaluate`, which takes the likeliest token.
        """
        found: dict[str, Any] = {"temperature": 0.0 if greedy else self.temperature}
        for name in (*(() if greedy else NUCLEUS), *PENALTIES, "min_tokens"):
            value, off = getattr(self, name), type(self).model_fields[name].get_default(call_default_factory=True)
            if value != off and (name, value) != ("top_k", -1):
                found[name] = value
        if processors := self.engine.get("logits_processors"):
            found["logits_processors"] = [str(each) for each in processors]
        return found


class PrefillOptions(EngineOptions):
    """Options of the `vllm-prefill` workload."""

    lease: int = Field(30, ge=10, description="seconds for which a prompt's KV cache waits to be fetched")
    host: str | None = Field(
        None,
        description="address at which decode ranks reach this rank; by default 127.0.0.1 on the backend `local`, "
        "elsewhere the address of the node's default route",
    )
