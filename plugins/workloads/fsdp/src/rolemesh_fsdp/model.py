"""From a Hugging Face folder to a sharded model, and this rank's blocks of its parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM

from rolemesh_fsdp.options import FSDPOptions

__all__ = ["Blocks", "load", "local", "release", "shard"]


def load(options: FSDPOptions, seed: int) -> torch.nn.Module:
    """The whole model in float32 on the CPU; the same weights on every rank. `seed` is for ``init: random``."""
    kind = {"dtype": torch.float32, "attn_implementation": options.attention}
    if options.init == "pretrained":
        model = AutoModelForCausalLM.from_pretrained(options.model, local_files_only=True, **kind)
    else:
        config = AutoConfig.from_pretrained(options.model, local_files_only=True)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config, **kind)  # type: ignore[no-untyped-call]
    model.config.use_cache = False
    if options.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def shard(model: torch.nn.Module, options: FSDPOptions, world_size: int, device: torch.device) -> torch.nn.Module:
    """`fully_shard` on each decoder layer and the root, over the default process group; `model` itself is changed.

    Tied embeddings belong to the root's group and stay tied.
    """
    policy: dict[str, Any] = {
        "mesh": init_device_mesh(device.type, (world_size,)),
        "reshard_after_forward": options.reshard_after_forward,
    }
    if options.dtype == "bfloat16":
        policy["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in _decoder_layers(model):
        fully_shard(layer, **policy)
    return fully_shard(model, **policy)


def _decoder_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def release(model: torch.nn.Module) -> None:
    """Free parameters that a forward pass gathered and no backward pass freed; they would be stale after an update."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's block of a (distributed) tensor, without autograd."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Blocks:
    """This rank's block of each parameter: FSDP2 shards dimension 0 as `torch.chunk` does, so a block may be empty.

    Take it right after `shard`: between forward and backward the module shows gathered parameters instead.
    """

    def __init__(self, model: torch.nn.Module, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.parameters: dict[str, torch.nn.Parameter] = dict(sorted(model.named_parameters()))
        """Each parameter once, by its first Hugging Face name, sorted."""
        self.data = {name: local(parameter) for name, parameter in self.parameters.items()}
        owner = {id(parameter): name for name, parameter in self.parameters.items()}
        self.names = {name: owner[id(p)] for name, p in sorted(model.named_parameters(remove_duplicate=False))}
        """Every Hugging Face name, tied ones included → the key in `parameters`."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The whole parameter's shape."""
        return tuple(self.parameters[name].shape)

    def offsets(self, name: str) -> tuple[int, ...]:
        """Where the block starts in the whole parameter."""
        rows, *rest = self.shape(name)
        return (min(rows, -(-rows // self.world_size) * self.rank), *(0 for _ in rest))
