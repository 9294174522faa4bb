"""Shard a model, and access this rank's blocks of its parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from rolemesh_fsdp.options import FSDPOptions
from rolemesh_training.model import decoder_layers

__all__ = ["local", "release", "reshard", "shard"]


def shard(model: torch.nn.Module, options: FSDPOptions, mesh: DeviceMesh) -> torch.nn.Module:
    """Apply `fully_shard` to each decoder layer and to the root, over `mesh`. `model` itself is changed.

    Tied embeddings belong to the root's group and stay tied.
    """
    policy: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": options.reshard_after_forward}
    if options.dtype == "bfloat16":
        policy["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in decoder_layers(model):
        fully_shard(layer, **policy)
    return fully_shard(model, **policy)


def release(model: torch.nn.Module) -> None:
    """Free parameters that a forward pass gathered but no backward pass freed; they would be stale after an update."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def reshard(model: torch.nn.Module, after_forward: bool) -> None:
    """Say whether forward passes free what they have gathered. A model that `shard` has not changed stays as it is."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_reshard_after_forward(after_forward, recurse=False)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's block of a (distributed) tensor, without autograd. FSDP2 shards dimension 0 like
    `torch.chunk`.

    For a parameter, call this right after `shard`: between forward and backward the module holds gathered parameters.
    """
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
