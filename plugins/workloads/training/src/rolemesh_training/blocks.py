"""This rank's block of each parameter, by its name in the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from rolemesh.api.batch import Shard

__all__ = ["Blocks", "chunk", "first_row"]


def chunk(tensor: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    """Return the view of dimension 0 that `torch.chunk` gives `rank`, which may be empty. Every rank has all of a
    scalar."""
    tensor = tensor.detach()
    if not tensor.dim():
        return tensor
    return tensor[first_row(tensor.shape, rank, world_size) : first_row(tensor.shape, rank + 1, world_size)]


def first_row(shape: torch.Size, rank: int, world_size: int) -> int:
    """Return the first index in dimension 0 of the chunk of `rank`; the number of rows if the chunk is empty."""
    return min(shape[0], -(-shape[0] // world_size) * rank)


class Blocks:
    """Blocks of dimension 0 in `torch.chunk`'s layout, so a block may be empty."""

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        rank: int,
        world_size: int,
        local: Callable[[torch.Tensor], torch.Tensor],
        aliases: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """`local` gives this rank's block of a parameter. `aliases` has all names of all parameters, tied ones too."""
        self.rank = rank
        self.world_size = world_size
        self.parameters: dict[str, torch.Tensor] = dict(sorted(parameters.items()))
        """Each parameter once, under its first name, sorted."""
        self.data = {name: local(parameter) for name, parameter in self.parameters.items()}
        owner = {id(parameter): name for name, parameter in self.parameters.items()}
        aliases = self.parameters if aliases is None else aliases
        self.names = {name: owner[id(p)] for name, p in sorted(aliases.items()) if id(p) in owner}
        """Every name, tied ones included → the key in `parameters`."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the whole parameter."""
        return tuple(self.parameters[name].shape)

    def offsets(self, name: str) -> tuple[int, ...]:
        """Return the offsets of the block in the whole parameter."""
        if not self.shape(name):
            return ()
        return (first_row(self.parameters[name].shape, self.rank, self.world_size), *(0 for _ in self.shape(name)[1:]))

    def shards(self, data: Mapping[str, torch.Tensor]) -> dict[str, Shard]:
        """Return tensors in the layout of the parameters as shards."""
        return {name: Shard(block, self.shape(name), self.offsets(name)) for name, block in data.items()}
