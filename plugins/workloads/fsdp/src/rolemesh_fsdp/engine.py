"""The trainer inside one rank: forward and backward over its rows in step with the other ranks, update, state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
import torch.utils.deterministic

from rolemesh.api.batch import Batch, Ragged, Shard, Shards
from rolemesh.api.workload import RankContext, State
from rolemesh_fsdp.adamw import AdamW
from rolemesh_fsdp.contract import LossContext, LossFunction, LossOutput
from rolemesh_fsdp.group import join
from rolemesh_fsdp.model import Blocks, load, release, shard
from rolemesh_fsdp.options import FSDPOptions
from rolemesh_fsdp.packing import completion_logprobs
from rolemesh_fsdp.parking import Parking

__all__ = ["Engine"]


class Engine:
    """Model, optimizer and process group of one rank.

    A group of one in float32 is the plain model without FSDP: nothing is gathered, copied or sent.
    """

    def __init__(self, ctx: RankContext[FSDPOptions]) -> None:
        self.ctx = ctx
        self.options = ctx.options
        self.version = 0
        self.device = _device(ctx)
        torch.set_num_threads(max(1, int(ctx.cpus)))
        torch.use_deterministic_algorithms(True, warn_only=self.device.type == "cuda")
        torch.utils.deterministic.fill_uninitialized_memory = False
        self.loss: LossFunction = self.options.loss.resolve()
        sharded = ctx.world_size > 1 or self.options.dtype != "float32"
        self.group = join(ctx, self.options.timeout_s, needed=sharded)
        seed = self.options.init_seed if self.options.init_seed is not None else ctx.seed_for("init")
        model = load(self.options, seed)
        self.model = shard(model, self.options, ctx.world_size, self.device) if sharded else model.to(self.device)
        self.blocks = Blocks(self.model, ctx.rank, ctx.world_size)
        self.optimizer = AdamW(self.blocks, self.options, self.group)
        self.parking = Parking(self._on_device())
        self._forwards = 0
        self.model.register_forward_pre_hook(self._count_forward)
        torch.manual_seed(ctx.seed_for("rank", ctx.rank))

    def train(self, batch: Batch) -> None:
        """One update; see `FSDPWorkload.train`."""
        self.model.train()
        sums: dict[str, list[float]] = {}
        with self._passes(batch) as parts:
            for part in parts:
                output = self._loss_of(part) if part is not None else self._idle_pass()
                weight = float(output.weight)
                if self.group.sum(weight) > 0:
                    output.total.backward()
                for name, (total, share) in {"loss": (output.total.detach(), weight), **output.metrics}.items():
                    _add(sums, name, float(total), float(share))
        if "weight_version" in batch and batch.rows:
            versions = np.asarray(batch["weight_version"], dtype=np.float64)
            _add(sums, "staleness", float((self.version - versions).sum()), float(batch.rows))
        self.ctx.count(trained_tokens=sums.get("loss", [0.0, 0.0])[1])
        self._update(sums)
        self.version += 1

    def _update(self, sums: dict[str, list[float]]) -> None:
        """Step the optimizer on the mean over all ranks, and report that mean, equal on every rank."""
        merged: dict[str, list[float]] = {}
        for part in self.group.gather(sums):
            for name, (total, weight) in part.items():
                _add(merged, name, total, weight)
        weight = merged.get("loss", [0.0, 0.0])[1]
        if weight > 0:
            # The backward passes have left the mean over ranks of each rank's sum of losses.
            norm, lr = self.optimizer.update(self.group.size / weight)
            self.ctx.metric(grad_norm=norm, lr=lr)
        else:
            self.optimizer.clear()
        self.ctx.metric(**{name: total / share for name, (total, share) in merged.items() if share > 0})

    def logprobs(self, batch: Batch) -> Batch:
        """See `FSDPWorkload.logprobs`."""
        self.model.eval()
        found = [np.zeros(0, dtype=np.float32)]
        with torch.no_grad(), self._passes(batch) as parts:
            for part in parts:
                if part is None:
                    self._idle_pass()
                    continue
                values = completion_logprobs(
                    self.model,
                    part["prompt_ids"],
                    part["completion_ids"],
                    self.device,
                    temperature=self.options.sampled_at,
                    packed=self.options.packed,
                )
                found.append(values.float().cpu().numpy())
        lengths = [len(row) for row in batch["completion_ids"]]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        return batch | {"ref_logprobs": Ragged(np.concatenate(found), offsets)}

    def weights(self) -> Shards:
        """See `FSDPWorkload.weights`."""
        dtype = getattr(torch, self.options.dtype)
        data = {name: block.to("cpu", dtype) for name, block in self.blocks.data.items()}
        shards = Shards()
        for alias, name in self.blocks.names.items():
            shards[alias] = Shard(data[name], self.blocks.shape(name), self.blocks.offsets(name))
        held = np.array([self.version] if self.ctx.rank == 0 else [], dtype=np.int64)
        shards["__version__"] = Shard(held, (1,), (0 if self.ctx.rank == 0 else 1,))
        return shards

    def snapshot(self) -> State:
        """See `FSDPWorkload.snapshot`; the keys are in a fixed order."""
        rng = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state(self.device)
        return {
            "version": self.version,
            "updates": self.optimizer.updates,
            "rng": rng,
            "model": self._shards(self.blocks.data),
            "optimizer": {moment: self._shards(data) for moment, data in self.optimizer.moments().items()},
        }

    def restore(self, state: State) -> None:
        """Raises `ValueError` if the snapshot was taken of another model, or is not this rank's part of it."""
        targets = {"model": self.blocks.data, **self.optimizer.moments()}
        sources = {"model": state["model"], **state["optimizer"]}
        for group, data in targets.items():
            if sources[group].keys() != data.keys():
                raise ValueError(
                    f"the snapshot is of another model than {self.options.model}; restore it with the options that it "
                    f"was taken with (it differs in {sorted(sources[group].keys() ^ data.keys())[:4]})"
                )
            for name, block in data.items():
                self._fill(block, sources[group][name], name)
        self.optimizer.restore(int(state["updates"]))
        self.version = int(state["version"])
        rng = state.get("rng", {})
        if "cpu" in rng:
            torch.set_rng_state(rng["cpu"])
        else:  # of another world size, whose ranks had different ones
            torch.manual_seed(self.ctx.seed_for("rank", self.ctx.rank, "version", self.version))
        if "cuda" in rng and self.device.type == "cuda":
            torch.cuda.set_rng_state(rng["cuda"], self.device)
        release(self.model)

    def _shards(self, data: Mapping[str, torch.Tensor]) -> dict[str, Shard]:
        return {name: Shard(block, self.blocks.shape(name), self.blocks.offsets(name)) for name, block in data.items()}

    def _fill(self, block: torch.Tensor, found: Shard, name: str) -> None:
        own = Shard(block, self.blocks.shape(name), self.blocks.offsets(name))
        if (found.shape, found.offsets, found.data.shape) != (own.shape, own.offsets, block.shape):
            raise ValueError(
                f"the snapshot's {name} is {found}, this rank's is {own}: it was taken of another model, or at another "
                "world size and not cut for this one"
            )
        block.copy_(found.data)

    def offload(self) -> None:
        """Parameters and moments wait in host memory, where the device has memory of its own."""
        if self.device.type != "cpu":
            release(self.model)
            self.parking.park()

    def onload(self) -> None:
        """They are back on the device."""
        self.parking.unpark()

    def _on_device(self) -> list[torch.Tensor]:
        moments = self.optimizer.moments()
        return [*self.blocks.data.values(), *(block for kind in moments.values() for block in kind.values())]

    def close(self) -> None:
        """Leave the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def _passes(self, batch: Batch) -> Iterator[list[Batch | None]]:
        """This rank's micro-batches, filled up with None to the number that the busiest rank has."""
        size = self.options.micro_batch_rows or max(1, batch.rows)
        parts: list[Batch | None] = [batch[start : start + size] for start in range(0, batch.rows, size)]
        try:
            yield parts + [None] * (self.group.max(len(parts)) - len(parts))
        finally:
            release(self.model)

    def _idle_pass(self) -> LossOutput:
        """Take part in the others' forward and backward pass without adding to either."""
        token = torch.zeros((1, 1), dtype=torch.int64, device=self.device)
        return LossOutput(self.model(input_ids=token, use_cache=False).logits.float().sum() * 0.0, 0.0)

    def _loss_of(self, part: Batch) -> LossOutput:
        before = self._forwards
        context = LossContext(self.device, self.ctx.step, self.version, self.options.loss_options)
        output = self.loss(self.model, part, context)
        if self._forwards - before != 1:
            raise RuntimeError(
                f"the loss {self.options.loss} ran the model {self._forwards - before} times on a micro-batch; it must "
                "run it exactly once, or ranks would gather parameters a different number of times and hang"
            )
        if not output.total.requires_grad:
            raise RuntimeError(
                f"the loss {self.options.loss} returned a total without a gradient; other ranks would wait for this "
                "rank's backward pass. Return a total computed from the model's output, with weight 0 to skip it"
            )
        return output

    def _count_forward(self, *_: object) -> None:
        self._forwards += 1


def _device(ctx: RankContext[FSDPOptions]) -> torch.device:
    wanted = ctx.options.device
    if wanted == "cpu" or (wanted == "auto" and not ctx.gpus):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"options.device is {wanted!r} and the rank has GPUs {list(ctx.gpus)}, but torch {torch.__version__} sees "
            "no CUDA device; install a CUDA build of torch or set options.device to cpu"
        )
    device = torch.device("cuda", ctx.gpus[0] if ctx.gpus else 0)
    torch.cuda.set_device(device)
    torch.cuda.init()  # or the device mesh would choose a device by itself
    return device


def _add(sums: dict[str, list[float]], name: str, total: float, weight: float) -> None:
    slot = sums.setdefault(name, [0.0, 0.0])
    slot[0] += total
    slot[1] += weight
