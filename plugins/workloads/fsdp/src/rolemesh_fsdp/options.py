"""The options of the job file, checked in the driver: nothing here imports torch."""

from __future__ import annotations

from pydantic import Field

from rolemesh_training import HuggingFaceOptions

__all__ = ["FSDPOptions"]


class FSDPOptions(HuggingFaceOptions):
    """Options of the `fsdp` workload."""

    reshard_after_forward: bool = Field(
        True, description="free gathered parameters between forward and backward: less memory, one more gather"
    )
