"""A trainer in one rank: forward and backward passes in step with the other ranks, update, state.

A subclass defines how gradients are summed over the ranks, and how parameters are divided.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
import torch.utils.deterministic
from numpy.typing import NDArray

from rolemesh.api.batch import Batch, Ragged, Shard, Shards, concat
from rolemesh.api.workload import RankContext, State
from rolemesh.errors import RolemeshError
from rolemesh_training.blocks import Blocks, chunk
from rolemesh_training.columns import check_columns, known_ids, text_rows, untaught_rows
from rolemesh_training.completions import Completions
from rolemesh_training.contract import LossContext, LossFunction, LossOutput
from rolemesh_training.generators import generator_states, restore_generators, seed_generators
from rolemesh_training.group import join
from rolemesh_training.inputs import text_config
from rolemesh_training.learning import OVERFLOW, WEIGHTLESS, ZERO, Learning, cause, facts, no_rate
from rolemesh_training.lengths import TokenColumn, fitted, taken
from rolemesh_training.lent import Lent
from rolemesh_training.measured import Fitness, fitness, remember, strictest
from rolemesh_training.model import buffers
from rolemesh_training.options import LOSS_OPTIONS, ONE_THREAD, token_column
from rolemesh_training.packing import completion_logprobs, completion_values, row_scores
from rolemesh_training.parking import Parking
from rolemesh_training.router import routers
from rolemesh_training.sampling import OLD, REFERENCE, row_name, row_temperatures
from rolemesh_training.speed import Speed, noted
from rolemesh_training.staleness import lags, stale_rows
from rolemesh_training.sums import add, add_lags, add_output, counted, reported, weights

__all__ = ["Trainer"]


class Trainer(ABC):
    """Model, optimizer and process group of one rank."""

    lockstep: ClassVar[bool] = True
    """True if a forward or backward pass communicates with the other ranks, so each rank must make as many as the
    busiest one."""
    model: torch.nn.Module
    """The object that a loss calls; set by `prepare`."""

    def __init__(self, ctx: RankContext, options: Any) -> None:
        self.ctx = ctx
        self.options = options
        self.version = 0
        self.learning = Learning()
        self.device = _device(ctx, options.device)
        if os.environ.get("OMP_NUM_THREADS", ONE_THREAD) == ONE_THREAD:  # else a person has said how many
            torch.set_num_threads(max(1, int(ctx.cpus)))
        # With warn_only, attention on a GPU would silently take kernels whose gradients differ from run to run.
        torch.use_deterministic_algorithms(self.options.deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = False
        self.loss: LossFunction = self.options.loss.resolve()
        self.ranks = join(
            ctx, options.timeout_s, needed=self.needs_group(), parallel=self.parallel(), device=self.device.type
        )
        self.group = self.ranks.data
        self.lent = Lent(ctx)
        self.prepare()
        self.buffers = Blocks(self.kept_buffers(), ctx.rank, ctx.world_size, self.chunk_of)
        self.parking = Parking(self.on_device())
        self._said: set[tuple[str, str]] = set()
        self._fit: Fitness | None = None
        config = text_config(self.model)
        self._vocabulary: int | None = getattr(config, "vocab_size", None)
        self._positions: int | None = getattr(config, "max_position_embeddings", None)
        self.speed = Speed(self.model, config, self.device, self.options.peak_tflops, self.ranks.tensor.size)
        if self.options.measured:
            self._measure()
        seed_generators(ctx.seed_for("rank", self.group.rank))

    # ------------------------------------------------------------------------------------------- what a subclass says

    def needs_group(self) -> bool:
        """Whether a single rank needs a process group too."""
        return False

    def parallel(self) -> int:
        """Return the number of ranks that divide the layers of a model, and take the same rows."""
        return 1

    @abstractmethod
    def prepare(self) -> None:
        """Create `model` and, unless it is frozen, the optimizer."""

    def kept_buffers(self) -> dict[str, torch.Tensor]:
        """Return the model's buffers that are part of weights and snapshots. Every rank has all of each."""
        return buffers(self.model, self.options)

    @abstractmethod
    def backward(self, output: LossOutput, share: float, *, last: bool) -> None:
        """Add the gradients of a micro-batch to those of the update.

        `share` is the weight of all ranks' micro-batches of this turn (only the rank's own, unless `lockstep`); it may
        be 0. `last` says that no further one follows on this rank.
        """

    def passed(self) -> None:  # noqa: B027 (there may be nothing)
        """This rank has made all passes of the update. Its next communication is in `Group.gather`."""

    @abstractmethod
    def update(self, weight: float) -> tuple[float, float] | None:
        """Step the optimizer on the mean over `weight`. Return the gradient norm before clipping and the learning rate,
        or None if the update was skipped. Raises `FloatingPointError` on every rank if the norm is not finite."""

    @abstractmethod
    def discard(self) -> None:
        """No rank's rows teach anything: drop the gradients."""

    @abstractmethod
    def whole(self) -> Mapping[str, Shard]:
        """Return this rank's block of every parameter under all of its names, in the model's compute dtype, on the
        CPU."""

    @abstractmethod
    def shards(self) -> dict[str, Any]:
        """Return the live tensors of the state but buffers: ``model`` by parameter, ``optimizer`` by moment and
        parameter."""

    def chunk_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of dimension 0, as `torch.chunk` cuts it for all ranks of the role."""
        return chunk(tensor, self.ctx.rank, self.ctx.world_size)

    @property
    @abstractmethod
    def updates(self) -> int:
        """Return the number of optimizer steps."""

    @abstractmethod
    def restored(self, state: State) -> None:
        """The tensors of `shards` were filled from `state`: update everything else."""

    def on_device(self) -> list[torch.Tensor]:
        """Return the tensors that `offload` moves."""
        return _tensors(self.shards())

    def release(self) -> None:  # noqa: B027 (there may be nothing)
        """Free the memory that forward passes left."""

    def precision(self) -> AbstractContextManager[Any]:
        """Return the context of each forward pass."""
        return nullcontext()

    def kept(self) -> AbstractContextManager[Any]:
        """Return the context of several forward passes with the same parameters; `release` follows."""
        return nullcontext()

    def progress(self) -> dict[str, Any]:
        """Return the other parts of a snapshot, as JSON values."""
        return {}

    # ---------------------------------------------------------------------------------------------------- the operators

    def train(self, batch: Batch) -> None:
        """One update for each mini-batch in each epoch; see `TrainerWorkload.train`."""
        if self.options.frozen:
            remedy = "set its option frozen to false, or leave the call out of the flow"
            raise RolemeshError(f"role {self.ctx.role} is frozen, and cannot be trained", remedy=remedy)
        self.speed.begin()
        batch = self._joined(batch)
        tokens = token_column(self.options.loss)
        batch = self._recent(self._fitting(batch, tokens, "train"))
        if tokens == "input_ids":
            self._tell_untaught(batch)
        batch = self._with_old_logprobs(batch)
        self.model.train()
        cuts = [batch.rows * i // self.options.mini_batches for i in range(self.options.mini_batches + 1)]
        for _ in range(self.options.epochs):
            for start, end in pairwise(cuts):
                self._learn(batch[start:end] if len(cuts) > 2 else batch, batch)
        self.ctx.metric(**self.speed.metrics(self.group.size))
        self.version += 1

    def _joined(self, batch: Batch) -> Batch:
        """Return the rows of all ranks that divide a model with this one."""
        if self.ranks.tensor.size == 1:
            return batch
        parts = self.ranks.tensor.gather(batch)
        found: Batch = concat([part for part in parts if part.rows] or parts[:1])
        return found

    def _returned(self, batch: Batch) -> Batch:
        """Return the rows that this rank returns, so that one of those that divide a model returns them."""
        return batch if self.ranks.tensor.rank == 0 else batch[:0]

    def _count(self, **values: float) -> None:
        """Count once what all ranks that divide a model have counted."""
        if self.ranks.tensor.rank == 0:
            self.ctx.count(**values)

    def _warn_once(self, operator: str, what: str, text: str) -> None:
        if (operator, what) not in self._said and self.ranks.tensor.rank == 0:
            self._said.add((operator, what))
            self.ctx.warn(text)

    def _fitting(self, batch: Batch, tokens: TokenColumn | None, operator: str) -> Batch:
        """Return the rows that are not too long, or were cut. Dropped rows are counted, and a warning is given once.

        Raises `RolemeshError` for an id that the model's vocabulary does not have.
        """
        known_ids(batch, self._vocabulary)
        limit = getattr(self.options, "max_length", None) or self._positions
        found = fitted(batch, limit, getattr(self.options, "too_long", "drop"), tokens)
        for what, which in (("dropped", found.dropped), ("truncated", found.truncated)):
            if which:
                self._count(**{f"rows_{what}": len(which)})
                row, fault = next(iter(which.items()))
                text = f"{row_name(batch, row)} {fault}, and is {what} by {operator}; further ones are counted only"
                self._warn_once(operator, what, f"{text} (rows_{what})")
        return found.batch

    def _tell_untaught(self, batch: Batch) -> None:
        """Count the rows without a target, and warn once."""
        if found := untaught_rows(batch):
            self._count(rows_without_target=len(found))
            text = f"{row_name(batch, found[0])} has no target: its mask or its labels count no token"
            self._warn_once("train", "untaught", f"{text}; further ones are counted only (rows_without_target)")

    def _recent(self, batch: Batch) -> Batch:
        """Return the rows without tokens that are older than `max_staleness`. The others are counted, and a warning is
        given once."""
        most = self.options.max_staleness
        found = lags(batch, self.version) if most is not None else None
        if most is None or found is None:
            return batch
        stale = stale_rows(found, most)
        for each in stale:
            self.ctx.metric(stale_rows=float(each))
        if not stale.any():
            return batch
        self._count(rows_stale=int(stale.sum()))
        row = int(np.flatnonzero(stale)[0])
        self._warn_once(
            "train",
            "stale",
            f"{row_name(batch, row)} has tokens of weights that are {found[row].max()} versions old, more than "
            f"max_staleness {most}, and is dropped; further ones are counted only (rows_stale)",
        )
        return taken(batch, np.flatnonzero(~stale))

    def _with_old_logprobs(self, batch: Batch) -> Batch:
        """Return `batch` with the log-probabilities before the update, if the loss needs them and cannot compute them
        itself."""
        options = self.options
        alone = options.mini_batches == options.epochs == 1 and not options.dropout
        if not options.corrects or alone:
            return batch
        stated = options.loss_options.get("temperature")
        return batch | {OLD: self._per_token(batch, self._logprobs_at(stated))}

    def _logprobs_at(self, stated: float | None) -> Callable[[Batch], torch.Tensor]:
        """Return a function that computes the log-probability of each completion token of a batch, at the temperature
        `stated`, or that of its rows; 0 for tokens that were not sampled."""

        def compute(part: Batch) -> torch.Tensor:
            found = Completions.of(part)
            logprobs = completion_logprobs(
                self.model,
                found.prompts,
                found.ids,
                self.device,
                temperature=row_temperatures(part, found.rows, stated),
                packed=self.options.packed,
                counted=found.sampled,
            )
            return found.scattered(logprobs)

        return compute

    def _learn(self, batch: Batch, whole: Batch) -> None:
        """Make one update from the rows of all ranks. `batch` is a part of the step's rows, `whole`."""
        sums: dict[str, list[float]] = {}
        parts = self._micro_batches(batch)
        try:
            more = self.lockstep or bool(parts)
            while more:
                output = self.loss_of(parts.popleft()) if parts else self._idle_pass()
                weight = float(output.weight)
                share, more = self._turn(weight, len(parts))
                self.backward(output, share, last=not more)
                add_output(sums, output)
        finally:
            self.release()
        self.passed()
        add_lags(sums, lags(batch, self.version) or [])
        self._count(trained_tokens=sums.get("loss", [0.0, 0.0])[1])
        self.learn_from(sums, batch, whole)

    def learn_from(self, sums: dict[str, list[float]], batch: Batch | None = None, whole: Batch | None = None) -> None:
        """Step the optimizer on the mean over all ranks, and report that mean, which is equal on every rank."""
        merged: dict[str, list[float]] = {}
        for part in self.group.gather(sums):
            for name, (total, weight) in part.items():
                add(merged, name, total, weight)
        merged.setdefault("loss", [0.0, 0.0])[1] = weight = counted(*weights(merged))
        self.step(weight, batch, whole)
        self.ctx.metric(**reported(merged))

    def step(self, weight: float, batch: Batch | None = None, whole: Batch | None = None) -> None:
        """Step the optimizer unless there is nothing to learn. Count the result, the same on every rank."""
        if self.ctx.world_size > 1:
            for buffer in self.buffers.parameters.values():  # a running mean: that of rank 0, as with torch's DDP
                dist.broadcast(buffer.view(torch.uint8) if buffer.dtype == torch.bool else buffer, src=0)
        if weight > 0:
            done = self.update(weight)
            if done is None:
                self.learning.taught_nothing(OVERFLOW)
                return
            norm, lr = done
            self.ctx.metric(grad_norm=norm, lr=lr)
            if norm > 0 and lr > 0:
                self.learning.useful += 1
                return
            otherwise = ZERO if norm == 0 else no_rate(self.options, self.updates)
        else:
            self.discard()
            otherwise = WEIGHTLESS
        why = cause(self.group.gather(facts(batch, whole)), otherwise) if otherwise in (ZERO, WEIGHTLESS) else otherwise
        self._count(useless_updates=1.0 / self.group.size)
        if self.learning.taught_nothing(why) and self.ctx.rank == 0:
            self.ctx.warn(f"update {sum(self.learning.useless.values()) + self.learning.useful} taught nothing: {why}")

    def verdict(self) -> str:
        """See `TrainerWorkload.verdict`."""
        why = self.learning.verdict() if self.options.if_nothing_learned == "fail" else ""
        return f"{why}; if that is meant, set if_nothing_learned to done" if why else ""

    def logprobs(self, batch: Batch) -> Batch:
        """See `TrainerWorkload.logprobs`."""
        check_columns(batch, "logprobs")
        batch = self._fitting(self._joined(batch), "completion_ids", "logprobs")
        self._measure()
        stated = self.options.sampled_at
        temperature = row_temperatures(batch, range(batch.rows), stated)
        found = {
            "ref_logprobs": self._per_token(batch, self._logprobs_at(stated)),
            REFERENCE: np.broadcast_to(np.float32(temperature), batch.rows).copy(),
        }
        return self._returned(batch | found)

    def values(self, batch: Batch) -> Batch:
        """See `TrainerWorkload.values`."""

        def compute(part: Batch) -> torch.Tensor:
            found = Completions.of(part)
            values = completion_values(
                self.model, found.prompts, found.ids, self.device, packed=self.options.packed, counted=found.sampled
            )
            return found.scattered(values)

        check_columns(batch, "values")
        batch = self._fitting(self._joined(batch), "completion_ids", "values")
        self._measure()
        return self._returned(batch | {"values": self._per_token(batch, compute)})

    def scores(self, batch: Batch) -> Batch:
        """See `TrainerWorkload.scores`."""
        check_columns(batch, "scores")
        batch = self._fitting(self._joined(batch), "input_ids", "scores")
        labels = int(self.model.config.num_labels)
        found = self._forward_only(batch, lambda part: row_scores(self.model, text_rows(part), self.device))
        scores = np.concatenate([np.zeros((0, labels), dtype=np.float32), *found])
        return self._returned(batch | {"scores": scores})

    def _per_token(self, batch: Batch, compute: Callable[[Batch], torch.Tensor]) -> Ragged:
        """Return the result of `compute` for each completion token."""
        found = self._forward_only(batch, compute)
        lengths = [len(row) for row in batch.get("completion_ids", ())]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        return Ragged(np.concatenate([np.zeros(0, dtype=np.float32), *found]), offsets)

    def _forward_only(self, batch: Batch, compute: Callable[[Batch], torch.Tensor]) -> list[NDArray[np.float32]]:
        """Return the results of `compute` for the micro-batches of this rank."""
        self.model.eval()
        found = []
        parts = self._micro_batches(batch)
        number = self.group.max(len(parts)) if self.lockstep else len(parts)
        try:
            with torch.no_grad():
                for _ in range(number):
                    if not parts:
                        self._idle_pass()
                        continue
                    with self.precision():
                        found.append(compute(parts.popleft()).float().cpu().numpy())
        finally:
            self.release()
        return found

    def weights(self) -> Shards:
        """See `TrainerWorkload.weights`."""
        shards = Shards({**self.whole(), **self.buffers.shards(self.lent.sent(self.buffers.data))})
        held = np.array([self.version] if self.ctx.rank == 0 else [], dtype=np.int64)
        shards["__version__"] = Shard(held, (1,), (0 if self.ctx.rank == 0 else 1,))
        lora = getattr(self.options, "lora", None)
        if lora is not None:
            scaling = np.array([lora.alpha / lora.rank] * len(held), dtype=np.float32)
            shards["__lora_scaling__"] = Shard(scaling, (1,), shards["__version__"].offsets)
        return shards

    # -------------------------------------------------------------------------------------------------------- the state

    def snapshot(self) -> State | None:
        """See `TrainerWorkload.snapshot`; the keys are in a fixed order."""
        if self.options.frozen:
            return None
        rng = generator_states(self.device)
        told = {"version": self.version, "updates": self.updates, "learning": self.learning.state(), "rng": rng}
        return {**told, **self.progress(), **self.shards(), "buffers": self._whole_buffers()}

    def _whole_buffers(self) -> dict[str, Shard]:
        return {n: Shard(b, tuple(b.shape), (0,) * b.dim()) for n, b in self.buffers.parameters.items()}

    def restore(self, state: State) -> None:
        """Restore a snapshot. Raises `ValueError` if it is of another model, or is not this rank's part of it."""
        for name, own in {**self.shards(), "buffers": self._whole_buffers()}.items():
            self._fill(own, state.get(name, {}), name)
        self.version = int(state["version"])
        self.learning.restore(state.get("learning"), int(state["updates"]))
        self.restored(state)
        rng = state.get("rng", {})
        if "cpu" not in rng:  # of another world size, whose ranks had different ones
            seed_generators(self.ctx.seed_for("rank", self.group.rank, "version", self.version))
        restore_generators(rng, self.device)
        self.release()

    def _fill(self, own: Any, found: Any, name: str) -> None:
        """Copy the tensors of a snapshot into those of the same name."""
        if isinstance(own, Shard):
            if (found.shape, found.offsets, found.data.shape) != (own.shape, own.offsets, own.data.shape):
                raise ValueError(
                    f"the snapshot's {name} is {found}, this rank's is {own}: it was taken of another model, or at "
                    "another world size and not cut for this one"
                )
            own.data.copy_(found.data)
            return
        if found.keys() != own.keys():
            model = getattr(self.options, "model", "this one")
            raise ValueError(
                f"the snapshot is of another model than {model}; restore it with the options that it was taken with "
                f"(it differs in {sorted(found.keys() ^ own.keys())[:4]})"
            )
        for key, value in own.items():
            self._fill(value, found[key], key)

    def offload(self) -> None:
        """Move parameters and moments to host memory, if the device has memory of its own."""
        if self.device.type != "cpu":
            self.release()
            self.parking.park()

    def onload(self) -> None:
        """Move parameters and moments back to the device."""
        self.parking.unpark()

    def close(self) -> None:
        """Leave the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()

    # ------------------------------------------------------------------------------------------------------- the passes

    def _measure(self) -> None:
        """Find out, on all ranks at once, whether the model may pack rows. Say so if it may not.

        Before the first update the weights are those of the options, so each start finds the same.
        """
        if self._fit or text_config(self.model) is None or getattr(self.options, "task", "") == "classification":
            return
        try:
            with self.precision(), self.kept():
                own = fitness(self.model, self.device, lambda value: max(self.ranks.every.gather(value)))
        finally:
            self.release()
        self._fit = strictest(self.ranks.every.gather(own))
        remember(self.model, self._fit)
        own_loss = str(self.options.loss) not in LOSS_OPTIONS  # which may pack nothing
        asked = self.options.packed or (self.options.loss_options.get("pack", True) and not self.options.frozen)
        if self._fit.why and asked and not own_loss and self.ctx.rank == 0:
            self.ctx.warn(
                f"rows of a {self._fit.kind} are padded and not packed: {self._fit.why}; set pack to false in "
                "loss_options (for a reference: in logprobs) to say that you want this"
            )

    def _micro_batches(self, batch: Batch) -> deque[Batch]:
        """Return this rank's micro-batches."""
        size = self.options.micro_batch_rows or max(1, batch.rows)
        return deque(batch[start : start + size] for start in range(0, batch.rows, size))

    def _turn(self, weight: float, left: int) -> tuple[float, bool]:
        """Return the argument `share` of `backward` for a micro-batch of `weight`, and whether a pass follows, with one
        collective.

        In lockstep one follows as long as any rank has micro-batches `left`.
        """
        share, rest = self.group.sums(weight, left) if self.lockstep else (weight, left)
        return share, rest > 0

    def _idle_pass(self) -> LossOutput:
        """Take part in the others' forward and backward pass without adding to either.

        A routers' loss is part of the pass: ZeRO 3 compares which of the model's outputs the backward pass visits.
        """
        token = noted(torch.zeros((1, 1), dtype=torch.int64, device=self.device), 0, 0)
        with self.precision(), routers(self.model) as own:
            logits = self.model(input_ids=token, use_cache=False).logits
            return LossOutput(own.added(logits.float().sum(), 1.0) * 0.0, 0.0)

    def loss_of(self, part: Batch) -> LossOutput:
        """Compute the loss of a part of a batch, without a backward pass."""
        before = self.speed.forwards
        context = LossContext(self.device, self.ctx.step, self.version, self.options.loss_options)
        with self.precision():
            output = self.loss(self.model, part, context)
        if self.lockstep and (number := self.speed.forwards - before) != 1:
            raise RuntimeError(
                f"the loss {self.options.loss} ran the model {number} times on a micro-batch; it must "
                "run it exactly once, or ranks would gather parameters a different number of times and hang"
            )
        if not output.total.requires_grad:
            raise RuntimeError(
                f"the loss {self.options.loss} returned a total without a gradient; other ranks would wait for this "
                "rank's backward pass. Return a total computed from the model's output, with weight 0 to skip it"
            )
        return output


def _tensors(found: Any) -> list[torch.Tensor]:
    if isinstance(found, Shard):
        return [found.data]
    return [tensor for value in found.values() for tensor in _tensors(value)]


def _device(ctx: RankContext, wanted: str) -> torch.device:
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
