"""The `ddp` workload as the kernel sees it; the torch code behind it is imported in `setup`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from rolemesh.api.workload import OperatorSpec, RankContext, State
from rolemesh_ddp.options import DDPOptions
from rolemesh_training.workload import TrainerWorkload, check_folder

if TYPE_CHECKING:
    from rolemesh_ddp.engine import Engine

__all__ = ["DDPWorkload"]


class DDPWorkload(TrainerWorkload):
    """Trains any torch module, or a Hugging Face model, that fits into each of `world_size` ranks."""

    Options: ClassVar[type[BaseModel]] = DDPOptions
    preload: ClassVar[Sequence[str]] = (*TrainerWorkload.preload, "rolemesh_ddp.engine")

    @classmethod
    def operators(cls, options: Any) -> Mapping[str, OperatorSpec]:
        """Return the operators of its head for a Hugging Face model; `train` and `weights` for another module."""
        found = super().operators(options)
        return found if options.factory is None else {name: found[name] for name in ("train", "weights")}

    @classmethod
    def check(cls, options: Any, world_size: int) -> None:
        """Check that a model folder has the files that `init` needs. Validating the options has already found a
        module's function."""
        if options.factory is None:
            check_folder(options)

    @classmethod
    def export(cls, options: Any, state: State, folder: Path) -> None:
        """Write ``model.safetensors``; for a Hugging Face model also the other files of its folder."""
        if options.factory is None:
            super().export(options, state, folder)
            return
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.contiguous() for name, tensor in {**state["model"], **state.get("buffers", {})}.items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    def make(self, ctx: RankContext) -> Engine:
        from rolemesh_ddp.engine import Engine

        return Engine(ctx, self.options)
