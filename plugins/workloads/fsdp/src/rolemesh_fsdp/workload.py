"""The `fsdp` workload as the kernel sees it; the torch code behind it is imported in `setup`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel

from rolemesh.api.workload import RankContext
from rolemesh_fsdp.options import FSDPOptions
from rolemesh_training.workload import TrainerWorkload

if TYPE_CHECKING:
    from rolemesh_fsdp.engine import Engine

__all__ = ["FSDPWorkload"]


class FSDPWorkload(TrainerWorkload):
    """Trains a Hugging Face model with FSDP2 over `world_size` ranks (gloo on CPUs, NCCL on GPUs)."""

    Options: ClassVar[type[BaseModel]] = FSDPOptions
    preload: ClassVar[Sequence[str]] = (*TrainerWorkload.preload, "rolemesh_fsdp.engine")

    def make(self, ctx: RankContext) -> Engine:
        from rolemesh_fsdp.engine import Engine

        return Engine(ctx, self.options)
