"""The options of the job file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

__all__ = ["EngineOptions", "PrefillOptions", "VLLMOptions"]


class EngineOptions(BaseModel, extra="forbid"):
    """What every role with an engine says about it."""

    model: str = Field(description="folder of a Hugging Face causal language model, relative to the job file")
    chat_template: bool = Field(
        True, description="true: render `messages` with the model's chat template; false: their contents, line by line"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = Field(
        None, description="the engine's number format; by default float32 on CPUs and auto (the model's) on GPUs"
    )
    threads: int | None = Field(
        None, gt=0, description="threads of the CPU engine; by default the whole cores of `resources.cpu`, at least one"
    )
    engine: dict[str, Any] = Field(
        default_factory=dict,
        description="further arguments of vllm's engine (vllm.EngineArgs), checked against the installed version",
    )

    @field_validator("model")
    @classmethod
    def _relative_to_job(cls, model: str, info: ValidationInfo) -> str:
        base = (info.context or {}).get("base", ".")
        return str(Path(base, Path(model).expanduser()).resolve())


class VLLMOptions(EngineOptions):
    """Options of the `vllm` and `vllm-decode` workloads."""

    samples: int = Field(1, gt=0, description="completions per prompt in `generate`; `evaluate` makes one")
    max_tokens: int = Field(256, gt=0, description="longest completion, in tokens")
    temperature: float = Field(1.0, ge=0, description="sampling temperature of `generate`; 0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="probability mass of the nucleus that `generate` samples from")
    stop: list[str] = Field(default_factory=list, description="strings that end a completion; they are not in `text`")
    seed: int | None = Field(None, ge=0, description="base of the seeds of all samples instead of the job's seed")


class PrefillOptions(EngineOptions):
    """Options of the `vllm-prefill` workload."""

    lease: int = Field(30, ge=10, description="seconds for which a prompt's KV cache waits to be fetched")
    host: str | None = Field(
        None,
        description="address at which decode ranks reach this rank; by default 127.0.0.1 on the backend `local`, "
        "elsewhere the address of the node's default route",
    )
