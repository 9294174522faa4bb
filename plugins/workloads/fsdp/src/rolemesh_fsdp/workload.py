"""The `fsdp` workload as the kernel sees it; the torch code behind it is imported in `setup`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from rolemesh.api.workload import RankContext
from rolemesh.errors import raise_all
from rolemesh_fsdp.options import FSDPOptions
from rolemesh_fsdp.plans import check_divisible
from rolemesh_training.workload import TrainerWorkload

if TYPE_CHECKING:
    from rolemesh_fsdp.engine import Engine

__all__ = ["FSDPWorkload"]


class FSDPWorkload(TrainerWorkload):
    """Trains a Hugging Face model with FSDP2 over `world_size` ranks (gloo on CPUs, NCCL on GPUs)."""

    Options: ClassVar[type[BaseModel]] = FSDPOptions
    preload: ClassVar[Sequence[str]] = (*TrainerWorkload.preload, "rolemesh_fsdp.engine")

    @classmethod
    def check(cls, options: Any, world_size: int) -> None:
        """Check the model folder, and that the ranks can divide its layers as `tensor_parallel` says."""
        super().check(options, world_size)
        if options.tensor_parallel > 1:
            raise_all(check_divisible(Path(options.model), options.tensor_parallel, world_size))

    def make(self, ctx: RankContext) -> Engine:
        from rolemesh_fsdp.engine import Engine

        return Engine(ctx, self.options)
