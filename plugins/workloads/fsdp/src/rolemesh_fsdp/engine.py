"""The trainer of one rank. FSDP2 shards its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from rolemesh.api.batch import Shard
from rolemesh.api.workload import State
from rolemesh_fsdp.model import local, release, reshard, shard
from rolemesh_training.blocks import Blocks, first_row
from rolemesh_training.contract import LossOutput
from rolemesh_training.model import parameters
from rolemesh_training.optimizer import Optimizer
from rolemesh_training.parts import Parts
from rolemesh_training.trainer import Trainer

__all__ = ["Engine"]

KEPT_BYTES = 1 << 30
"""Size of a model up to which a rank keeps all parameters between forward passes in a row."""


class Engine(Trainer):
    """The trainer. A group of one rank in float32 uses the plain model without FSDP, so nothing is gathered, copied or
    sent."""

    def needs_group(self) -> bool:
        return bool(self.ctx.world_size > 1 or self.options.dtype != "float32")

    def prepare(self) -> None:
        options, ctx = self.options, self.ctx
        seed = options.init_seed if options.init_seed is not None else ctx.seed_for("init")
        parts = Parts(options, seed, self._run)
        self.model = parts.model
        if self.needs_group():
            shard(self.model, options, ctx.world_size, self.device)
        parts.allocate(self.device)
        parts.fill(lambda parameter: local(parameter).view(-1))
        kept, names = parameters(self.model, options), parameters(self.model, options, aliases=True)
        self.blocks = Blocks(kept, ctx.rank, ctx.world_size, local, names)
        dims = {name: parameter.dim() for name, parameter in self.blocks.parameters.items()}
        self.optimizer = None if options.frozen else Optimizer(self.blocks.data, dims, options)

    def _run(self, shape: torch.Size) -> tuple[int, int]:
        """Return start and size of this rank's block of a flattened parameter, as FSDP2 divides it."""
        if not self.needs_group():
            return 0, shape.numel()
        start, end = (first_row(shape, rank, self.ctx.world_size) for rank in (self.ctx.rank, self.ctx.rank + 1))
        return start * shape[1:].numel(), (end - start) * shape[1:].numel()

    @property
    def updates(self) -> int:
        return self.optimizer.updates if self.optimizer is not None else 0

    def backward(self, output: LossOutput, share: float, *, last: bool) -> None:
        if share > 0:
            output.total.backward()

    def update(self, weight: float) -> tuple[float, float]:
        assert self.optimizer is not None
        gradients = {n: local(p.grad) for n, p in self.blocks.parameters.items() if p.grad is not None}
        # The backward passes have left the mean over ranks of each rank's sum of losses.
        done = self.optimizer.update(gradients, self.group.size / weight, self.group.sum)
        self.discard()
        return done

    def discard(self) -> None:
        for parameter in self.blocks.parameters.values():
            parameter.grad = None

    def whole(self) -> Mapping[str, Shard]:
        dtype = getattr(torch, self.options.dtype)
        data = self.blocks.shards({name: block.to("cpu", dtype) for name, block in self.blocks.data.items()})
        return {alias: data[name] for alias, name in self.blocks.names.items()}

    def shards(self) -> dict[str, Any]:
        found: dict[str, Any] = {"model": self.blocks.shards(self.blocks.data)}
        if self.optimizer is not None:
            found["optimizer"] = {m: self.blocks.shards(data) for m, data in self.optimizer.moments().items()}
        return found

    def restored(self, state: State) -> None:
        assert self.optimizer is not None
        self.optimizer.restore(int(state["updates"]))

    def on_device(self) -> list[torch.Tensor]:
        return [*super().on_device(), *(local(parameter) for parameter in self.model.parameters())]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Gather the parameters of a model of up to `KEPT_BYTES` once for all passes inside."""
        small = sum(each.numel() * each.element_size() for each in self.model.parameters()) <= KEPT_BYTES
        keeps = small and self.options.reshard_after_forward
        if keeps:
            reshard(self.model, False)
        try:
            yield
        finally:
            if keeps:
                reshard(self.model, True)

    def release(self) -> None:
        release(self.model)
