"""The trainer of one rank. FSDP2 shards its parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from rolemesh.api.batch import Shard
from rolemesh.api.workload import State
from rolemesh_fsdp.layout import Layout, MeshBlocks
from rolemesh_fsdp.model import local, release, reshard, shard
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

    _summed: Collection[str] = ()

    def needs_group(self) -> bool:
        return bool(self.ctx.world_size > 1 or self.options.dtype != "float32")

    def parallel(self) -> int:
        return int(self.options.tensor_parallel)

    def prepare(self) -> None:
        options, ranks, mesh = self.options, self.ranks, self.ranks.mesh
        seed = options.init_seed if options.init_seed is not None else self.ctx.seed_for("init")
        dims: Mapping[str, int] = {}
        if mesh is not None:
            from rolemesh_fsdp.tensor_parallel import divide, division

            found = division(options, mesh["tensor"])
            dims, self._summed = found.dims, found.summed
        layout = Layout(ranks, dims)
        parts = Parts(options, seed, layout.runs)
        self.model = parts.model
        if mesh is not None:
            divide(self.model, found.plan, mesh["tensor"])
        if ranks.data.size > 1 or options.dtype != "float32":
            data = mesh["data"] if mesh is not None else init_device_mesh(self.device.type, (ranks.data.size,))
            shard(self.model, options, data)
        parts.allocate(self.device)
        parts.fill(lambda parameter: local(parameter).view(-1))
        if not options.frozen and not self.needs_group():
            self.lent.move(self.model)
        kept, names = parameters(self.model, options), parameters(self.model, options, aliases=True)
        self.blocks = MeshBlocks(kept, layout, local, names)
        self.optimizer = None
        if not options.frozen:
            ndims = {name: parameter.dim() for name, parameter in self.blocks.parameters.items()}
            copies = {name: layout.copies(name) for name in ndims}
            self.optimizer = Optimizer(self.blocks.data, ndims, options, copies)

    @property
    def updates(self) -> int:
        return self.optimizer.updates if self.optimizer is not None else 0

    def backward(self, output: LossOutput, share: float, *, last: bool) -> None:
        if share > 0:
            output.total.backward()

    def update(self, weight: float) -> tuple[float, float]:
        assert self.optimizer is not None
        gradients = {n: _gradient(p) for n, p in self.blocks.parameters.items() if p.grad is not None}
        for name in sorted(gradients.keys() & set(self._summed)):
            dist.all_reduce(gradients[name], group=self.ranks.tensor.process_group)
        # The backward passes have left the mean over ranks of each rank's sum of losses.
        done = self.optimizer.update(gradients, self.group.size / weight, self.ranks.every.sum)
        self.discard()
        return done

    def discard(self) -> None:
        for parameter in self.blocks.parameters.values():
            parameter.grad = None

    def whole(self) -> Mapping[str, Shard]:
        dtype = getattr(torch, self.options.dtype)
        data = self.blocks.sent(self.lent.sent(self.blocks.data, dtype))
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


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Return this rank's block of the gradient, summed over the ranks that have parts of the sum."""
    gradient = parameter.grad
    assert gradient is not None
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor) and gradient.placements != parameter.placements:
        gradient = gradient.redistribute(placements=parameter.placements)
    return local(gradient)
