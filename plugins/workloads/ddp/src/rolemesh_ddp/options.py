"""The options of the job file, checked in the driver: nothing here imports torch."""

from __future__ import annotations

import re
from typing import Any, Self

from pydantic import Field, TypeAdapter, ValidationInfo, field_validator, model_validator

from rolemesh.api.import_ref import ImportRef
from rolemesh_training import HuggingFaceOptions
from rolemesh_training.options import folder_of

__all__ = ["DDPOptions", "StageOptions"]

_OF_HUGGING_FACE = ("init", "task", "lora", "gradient_checkpointing", "attention", "max_length", "too_long")
_REFERENCE = re.compile(r"[^:]+:[A-Za-z_][\w.]*")


class DDPOptions(HuggingFaceOptions):
    """Options of the `ddp` workload."""

    model: str = Field(
        description="`file.py:name` or `module:name` of a function that returns a torch module, or a folder of a "
        "Hugging Face model; relative to the job file"
    )
    init_seed: int | None = Field(
        None, ge=0, description="seed of a module of one's own, or of `init: random`; from the job's seed if absent"
    )
    model_options: dict[str, Any] = Field(
        default_factory=dict, description="keyword arguments of the function that returns the module"
    )
    bucket_mb: float = Field(
        25.0, gt=0, description="size in 10^6 bytes of the pieces in which gradients are sent during the backward pass"
    )

    @property
    def factory(self) -> ImportRef | None:
        """The function that returns the module; None for a Hugging Face model."""
        return self.model if isinstance(self.model, ImportRef) else None

    @field_validator("model")
    @classmethod
    def _relative_to_job(cls, model: str, info: ValidationInfo) -> str:
        if _REFERENCE.fullmatch(model):
            return TypeAdapter(ImportRef).validate_python(model, context=info.context)
        return folder_of(model, info)

    @model_validator(mode="after")
    def _belong_to_the_model(self) -> Self:
        if self.factory is None and self.model_options:
            raise ValueError("model_options are for a function that returns a module; options.model is a folder")
        foreign = [name for name in _OF_HUGGING_FACE if getattr(self, name) != type(self).model_fields[name].default]
        if self.factory is not None and foreign:
            raise ValueError(
                f"{', '.join(foreign)} is for Hugging Face models; {self.factory} makes a module of its own"
            )
        return self


class StageOptions(DDPOptions):
    """Options of the `stage` workload: those of `ddp`, for a module of one's own."""

    model: str = Field(
        description="`file.py:name` or `module:name` of a function that returns a torch module, relative to the job "
        "file; the module is called with the columns that its forward names, and returns a mapping of tensors by name"
    )
    trace_passes: bool = Field(
        False, description="record when each pass began and ended, in the step's `records` as `passes_<role>`"
    )

    @model_validator(mode="after")
    def _is_a_module_of_ones_own(self) -> Self:
        if self.factory is None:
            raise ValueError("the model of a stage is a function that returns a torch module, such as net.py:front")
        for name in ("micro_batch_rows", "mini_batches", "epochs"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is for trainers; of a stage the flow says what it passes, and when")
        return self
