"""The `deepspeed` workload as the kernel sees it; what is behind it is imported in `setup`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from rolemesh.api.workload import RankContext, State
from rolemesh_deepspeed.options import DeepSpeedOptions
from rolemesh_training.workload import TrainerWorkload

if TYPE_CHECKING:
    from rolemesh_deepspeed.engine import Engine

__all__ = ["DeepSpeedWorkload"]


class DeepSpeedWorkload(TrainerWorkload):
    """Trains a Hugging Face model with DeepSpeed's ZeRO 1, 2 or 3 over `world_size` ranks."""

    Options: ClassVar[type[BaseModel]] = DeepSpeedOptions
    preload: ClassVar[Sequence[str]] = (
        *TrainerWorkload.preload,
        "rolemesh_deepspeed.engine",
        # deepspeed.initialize imports both, and with the first all of torch's compiler: seconds of each restart
        "deepspeed.runtime.zero.muon.muon_optimizer",
        "deepspeed.module_inject.auto_ep_layer",
    )
    env: ClassVar[Mapping[str, str]] = {
        **TrainerWorkload.env,
        # DeepSpeed asks for devices as it is imported, which must not initialise CUDA before the fork.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }

    @classmethod
    def export(cls, options: Any, state: State, folder: Path) -> None:
        """As for any trainer. ZeRO's parts of parameters are flat."""
        shapes = state["shapes"]
        model = {name: tensor.reshape(shapes[name]) for name, tensor in state["model"].items()}
        super().export(options, {**state, "model": model}, folder)

    def make(self, ctx: RankContext) -> Engine:
        from rolemesh_deepspeed.engine import Engine

        return Engine(ctx, self.options)
