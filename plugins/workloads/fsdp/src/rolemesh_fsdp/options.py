"""The options of the job file, checked in the driver: nothing here imports torch."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rolemesh_training import HuggingFaceOptions

__all__ = ["FSDPOptions"]


class FSDPOptions(HuggingFaceOptions):
    """Options of the `fsdp` workload."""

    reshard_after_forward: bool = Field(
        True, description="free gathered parameters between forward and backward: less memory, one more gather"
    )
    tensor_parallel: int = Field(
        1,
        gt=0,
        description="number of consecutive ranks that divide each layer and take the same rows, by transformers' plan "
        "of the model (DTensor); it divides world_size",
    )

    @model_validator(mode="after")
    def _divided_layers_have_no_adapters(self) -> Self:
        if self.tensor_parallel > 1 and self.lora is not None:
            raise ValueError(
                f"lora does not go with tensor_parallel {self.tensor_parallel}, which cannot divide peft's adapters; "
                "leave tensor_parallel 1"
            )
        return self
