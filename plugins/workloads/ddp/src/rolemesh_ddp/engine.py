"""The trainer of one rank, which has the whole model. Gradients are summed over the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from rolemesh.api.batch import Shard
from rolemesh.api.workload import State
from rolemesh_ddp.reducer import Reducer
from rolemesh_training.blocks import Blocks, chunk
from rolemesh_training.contract import LossOutput
from rolemesh_training.model import load, parameters, without_dropout
from rolemesh_training.optimizer import Optimizer
from rolemesh_training.trainer import Trainer

__all__ = ["Engine"]


class Engine(Trainer):
    """Each rank has all parameters and moments, but its snapshot contains only its chunk. A restored group joins the
    chunks."""

    lockstep = False

    def prepare(self) -> None:
        options, ctx = self.options, self.ctx
        seed = options.init_seed if options.init_seed is not None else ctx.seed_for("init")
        self.model = (self._made(seed) if options.factory is not None else load(options, seed)).to(self.device)
        if not options.frozen and options.dtype == "float32":
            self.lent.move(self.model)
        kept, names = parameters(self.model, options), parameters(self.model, options, aliases=True)
        self.parameters = {n: p for n, p in sorted(kept.items()) if p.requires_grad}
        self.blocks = Blocks(kept, ctx.rank, ctx.world_size, self.chunk_of, names)
        self.optimizer: Optimizer | None = None
        self.reducer: Reducer | None = None
        if options.frozen:
            return
        if not self.parameters:
            raise ValueError(f"{options.model} has no parameter to train; set options.frozen if that is what you want")
        data = {name: parameter.detach() for name, parameter in self.parameters.items()}
        self.optimizer = Optimizer(data, {name: p.dim() for name, p in data.items()}, options)
        if ctx.world_size > 1:
            self.reducer = Reducer(self.parameters.values(), options.bucket_mb * 1e6)

    def _made(self, seed: int) -> torch.nn.Module:
        """Return the module of the job's own function, with equal weights on every rank."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.options.factory.resolve()(**self.options.model_options)
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"{self.options.model} returned {type(model).__name__}; it must return a torch.nn.Module")
        if not self.options.drops:
            without_dropout(model)
        return model.train()

    def precision(self) -> AbstractContextManager[Any]:
        if self.options.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    @property
    def updates(self) -> int:
        return self.optimizer.updates if self.optimizer is not None else 0

    def backward(self, output: LossOutput, share: float, *, last: bool) -> None:
        if share <= 0:
            return
        if last and self.reducer is not None:
            self.reducer.begin()
        output.total.backward()

    def passed(self) -> None:
        if self.reducer is not None:
            self.reducer.flush()

    def update(self, weight: float) -> tuple[float, float]:
        assert self.optimizer is not None
        if self.reducer is not None:
            self.reducer.wait()
        # One that no loss has used has a gradient of zero, on one rank as on several.
        gradients = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in self.parameters.items()}
        done = self.optimizer.update(gradients, 1 / weight)
        self.discard()
        return done

    def discard(self) -> None:
        if self.reducer is not None:
            self.reducer.wait()
        for parameter in self.parameters.values():
            parameter.grad = None

    def whole(self) -> Mapping[str, Shard]:
        dtype = getattr(torch, self.options.dtype)
        shards = self.blocks.shards(self.lent.sent(self.blocks.data, dtype))
        return {alias: shards[name] for alias, name in self.blocks.names.items()}

    def shards(self) -> dict[str, Any]:
        found: dict[str, Any] = {"model": self.blocks.shards(self.blocks.data)}
        if self.optimizer is not None:
            found["optimizer"] = {
                moment: self.blocks.shards({name: self.chunk_of(tensor) for name, tensor in data.items()})
                for moment, data in self.optimizer.moments().items()
            }
        return found

    def restored(self, state: State) -> None:
        assert self.optimizer is not None
        self.optimizer.restore(int(state["updates"]))
        if self.ctx.world_size > 1:
            self._gather(self._whole_state())

    def on_device(self) -> list[torch.Tensor]:
        return [*self._whole_state(), *(parameter.detach() for parameter in self.model.parameters())]

    def _whole_state(self) -> list[torch.Tensor]:
        moments = self.optimizer.moments().values() if self.optimizer is not None else ()
        tensors = [*self.blocks.parameters.values(), *(tensor for data in moments for tensor in data.values())]
        return [tensor.detach() for tensor in tensors]

    def _gather(self, tensors: Iterable[torch.Tensor]) -> None:
        """Send every rank's chunks to all ranks, in one message per rank and dtype."""
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in tensors:
            if tensor.dim():
                by_dtype.setdefault(tensor.dtype, []).append(tensor)
        for group in by_dtype.values():
            for rank in range(self.ctx.world_size):
                pieces = [chunk(tensor, rank, self.ctx.world_size) for tensor in group]
                flat = torch.cat([piece.reshape(-1) for piece in pieces])
                dist.broadcast(flat, src=rank)
                for piece, found in zip(pieces, flat.split([p.numel() for p in pieces]), strict=True):
                    piece.copy_(found.view_as(piece))
