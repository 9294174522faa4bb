"""The trainer of one rank, which uses DeepSpeed's engine."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator, set_accelerator
from deepspeed.ops import __compatible_ops__ as compatible_ops

from rolemesh.api.batch import Shard
from rolemesh.api.workload import RankContext, State
from rolemesh_deepspeed.partitions import Partitions
from rolemesh_training.blocks import Blocks
from rolemesh_training.contract import LossOutput
from rolemesh_training.model import buffers, load, parameters
from rolemesh_training.optimizer import MOMENTS, divided_by_decay, not_finite, of
from rolemesh_training.parts import Parts
from rolemesh_training.schedules import factor
from rolemesh_training.trainer import Trainer

__all__ = ["Engine"]

_GATHERED_AT_ONCE = 64_000_000
"""Number of elements of ZeRO 3's parameters that `weights` joins at a time."""


class Engine(Trainer):
    """The trainer. DeepSpeed averages the gradients that each rank has summed, over the ranks; it also clips and
    updates."""

    def __init__(self, ctx: RankContext, options: Any) -> None:
        self.engine: Any = None
        self._updates = 0
        self._first = 0.0
        super().__init__(ctx, options)

    def needs_group(self) -> bool:
        return True

    def prepare(self) -> None:
        options, ctx = self.options, self.ctx
        seed = options.init_seed if options.init_seed is not None else ctx.seed_for("init")
        self._dtype = getattr(torch, options.dtype)
        divided = options.stage == 3 and not options.frozen
        if not options.frozen:
            _settle(self.device, ctx)
        model = self._divided(seed) if divided else load(options, seed)
        self._named = dict(sorted(parameters(model, options).items()))
        self._aliases = parameters(model, options, aliases=True)
        self._every = list(model.parameters())
        self._inner = model
        if options.frozen:  # DeepSpeed divides what is trained: a reference is whole on each rank
            for parameter in model.to(self.device).parameters():  # no buffer: frequencies are float32
                parameter.data = parameter.data.to(self._dtype)
            self.model = _Model(model, model, self._dtype)
            return
        dims = {name: len(p.ds_shape if divided else p.shape) for name, p in self._named.items()}
        optimizer = of(divided_by_decay(self._named, dims, options.weight_decay), options)
        self.engine, *_ = deepspeed.initialize(
            model=model, optimizer=optimizer, config=self._config(), dist_init_required=False
        )
        self.zero = self.engine.optimizer
        self.model = _Model(self.engine, model, self._dtype)
        self.partitions = Partitions(self._named, self.zero, options.stage, MOMENTS[options.optimizer])

    def _divided(self, seed: int) -> torch.nn.Module:
        """Return the model as ZeRO 3 divides it. Each rank reads its own part, one parameter at a time."""

        def run(shape: torch.Size) -> tuple[int, int]:
            each = -(-shape.numel() // self.ctx.world_size)
            start = min(shape.numel(), each * self.ctx.rank)
            return start, min(each, shape.numel() - start)

        def local(parameter: Any) -> torch.Tensor:
            found: torch.Tensor = parameter.ds_tensor[: run(parameter.ds_shape)[1]]
            return found

        parts = Parts(self.options, seed, lambda _, shape: [run(shape)])
        deepspeed.zero.Init(module=_OneByOne(parts.model, self._dtype), config_dict_or_path=self._config())
        parts.allocate(self.device)
        parts.fill(local)
        return parts.model

    def _config(self) -> dict[str, Any]:
        """Return DeepSpeed's config: the job's config, completed from the options."""
        config = {key: value for key, value in self.options.config.items() if key != "optimizer"}
        own = {"bfloat16": "bf16", "float16": "fp16"}.get(self.options.dtype)
        if own is not None:
            config[own] = {**config.get(own, {}), "enabled": True}
        return {
            "steps_per_print": 1 << 60,
            **config,
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": self.options.clip_norm or 0.0,
            "zero_allow_untested_optimizer": True,
        }

    @property
    def updates(self) -> int:
        return self._updates

    def backward(self, output: LossOutput, share: float, *, last: bool) -> None:
        if share <= 0 and not (last and self._first):
            return
        # What is added up is divided by the weight of the first micro-batches, and put right in `update`: the sums stay
        # near the mean, which half precision needs, and with one micro-batch there is nothing to put right.
        self._first = self._first or share
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(output.total * (self.group.size / self._first))

    def update(self, weight: float) -> tuple[float, float] | None:
        rate = self.options.lr * factor(self.options, self._updates)
        groups = self.zero.param_groups
        if self.engine.lr_scheduler is None:
            for group in groups:
                group["lr"] = rate
        rate = float(groups[0]["lr"])
        if self._first != weight:
            for gradients in self.zero.averaged_gradients.values():
                for gradient in gradients or ():
                    gradient.mul_(self._first / weight)
        self._first = 0.0
        self.engine.step()
        if self.zero.overflow and self.options.dtype == "float16":
            self.ctx.count(skipped_updates=1.0 / self.group.size)
            return None  # the loss scaler has lowered its scale, as it does
        norm = float(self.engine.get_global_grad_norm())
        if self.zero.overflow or not 0 <= norm < float("inf"):
            raise not_finite(norm, self._updates)
        self._updates += 1
        return norm, rate

    def discard(self) -> None:
        """Forget the gradients: no backward pass was made."""

    def whole(self) -> Mapping[str, Shard]:
        if self.options.frozen or self.options.stage < 3:
            blocks = Blocks(self._named, self.ctx.rank, self.ctx.world_size, self.chunk_of, self._aliases)
            data = blocks.shards(self.lent.sent(blocks.data))
            return {alias: data[name] for alias, name in blocks.names.items()}
        data = {}
        for names in self._by_size():
            with deepspeed.zero.GatheredParameters([self._named[name] for name in names]):
                part = {name: self._named[name] for name in names}
                blocks = Blocks(part, self.ctx.rank, self.ctx.world_size, self.chunk_of)
                data.update(blocks.shards({n: block.to("cpu", copy=True) for n, block in blocks.data.items()}))
        owner = {id(parameter): name for name, parameter in self._named.items()}
        return {alias: data[owner[id(parameter)]] for alias, parameter in sorted(self._aliases.items())}

    def _by_size(self) -> Iterator[list[str]]:
        names: list[str] = []
        size = 0
        for name, parameter in self._named.items():
            if names and size + parameter.ds_numel > _GATHERED_AT_ONCE:
                yield names
                names, size = [], 0
            names.append(name)
            size += parameter.ds_numel
        yield names

    def kept_buffers(self) -> dict[str, torch.Tensor]:
        return buffers(self._inner, self.options)

    def shards(self) -> dict[str, Any]:
        if self.options.frozen:
            return {}
        return {
            "model": self.partitions.shards(),
            "optimizer": {moment: self.partitions.shards(moment) for moment in self.partitions.moments},
        }

    def on_device(self) -> list[torch.Tensor]:
        if self.options.frozen:
            return [parameter.detach() for parameter in self._every]
        own = [p.ds_tensor if self.options.stage == 3 else p for p in self._every]
        return [*super().on_device(), *(tensor.detach() for tensor in own)]

    def progress(self) -> dict[str, Any]:
        scaler = {k: v for k, v in vars(self.zero.loss_scaler).items() if isinstance(v, (bool, int, float))}
        found: dict[str, Any] = {"shapes": self.partitions.shapes(), "loss_scaler": scaler}
        if self.engine.lr_scheduler is not None:
            found["scheduler"] = self.engine.lr_scheduler.state_dict()
            # It has set these for the next update already, and its own state does not say to what.
            found["groups"] = [{k: g[k] for k in ("lr", "betas", "momentum") if k in g} for g in self.zero.param_groups]
        return found

    def restored(self, state: State) -> None:
        self._updates = int(state["updates"])
        self.partitions.filled(self._updates)
        vars(self.zero.loss_scaler).update(state["loss_scaler"])
        if self.engine.lr_scheduler is not None:
            self.engine.lr_scheduler.load_state_dict(state["scheduler"])
            for group, found in zip(self.zero.param_groups, state["groups"], strict=True):
                group.update({key: tuple(value) if key == "betas" else value for key, value in found.items()})

    def close(self) -> None:
        if self.engine is not None:
            self.engine.destroy()
        super().close()


class _OneByOne(torch.nn.Module):
    """A model's parameters for `deepspeed.zero.Init`, which divides each one before it takes the next."""

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.__dict__.update(model=model, dtype=dtype)

    def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:
        for parameter in self.model.parameters():
            if parameter.device.type == "meta":
                empty = torch.empty(parameter.shape, dtype=self.dtype)
                torch.utils.swap_tensors(parameter, torch.nn.Parameter(empty, requires_grad=parameter.requires_grad))
            else:
                parameter.data = parameter.data.to(self.dtype)
            yield parameter


class _Model(torch.nn.Module):
    """The object that a loss calls: it passes each forward pass to DeepSpeed's engine, and has the model's
    attributes."""

    def __init__(self, run: torch.nn.Module, model: torch.nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.__dict__.update(run=run, inner=model, dtype=dtype)  # no submodules: the engine has its own ways with them

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*map(self._cast, args), **{name: self._cast(value) for name, value in kwargs.items()})

    def _cast(self, value: Any) -> Any:
        return value.to(self.dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    def train(self, mode: bool = True) -> _Model:
        self.run.train(mode)
        return super().train(mode)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["inner"], name)


def _settle(device: torch.device, ctx: RankContext) -> None:
    """Set the environment that DeepSpeed reads, for this rank."""
    os.environ["LOCAL_RANK"] = str(ctx.gpus[0] if ctx.gpus else ctx.local_rank)
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\..*is deprecated", category=FutureWarning)
    if get_accelerator().device_name() != device.type:  # it was chosen where DeepSpeed was imported, before the fork
        if device.type == "cuda":
            from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

            set_accelerator(CUDA_Accelerator())
        else:
            from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

            set_accelerator(CPU_Accelerator())
    # It would be compiled here, for a minute, and is for inference only.
    compatible_ops["deepspeed_shm_comm"] = False
