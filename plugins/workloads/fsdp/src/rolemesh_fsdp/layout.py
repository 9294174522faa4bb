"""The blocks of a rank in the parameters: tensor parallelism cuts a dimension, and FSDP2 dimension 0 after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import NamedTuple

import numpy as np
import torch

from rolemesh.api.batch import Shard
from rolemesh_training.blocks import Blocks, first_row
from rolemesh_training.group import Ranks

__all__ = ["Box", "Layout", "MeshBlocks"]


class Box(NamedTuple):
    """A rectangular block of a tensor."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def cut(self, dim: int, index: int, count: int) -> Box:
        """Return chunk `index` of ``torch.chunk(block, count, dim)``; it may be empty."""
        start, end = (first_row(torch.Size(self.sizes[dim:]), rank, count) for rank in (index, index + 1))
        return Box(_with(self.offsets, dim, self.offsets[dim] + start), _with(self.sizes, dim, end - start))

    def runs(self, shape: tuple[int, ...]) -> list[tuple[int, int]]:
        """Return first element and length of each run of the block in the flattened tensor of `shape`."""
        if not prod(self.sizes):
            return []
        last = max((dim for dim, size in enumerate(self.sizes) if size < shape[dim]), default=0)
        length = prod(self.sizes[last:])
        strides = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
        first = sum(offset * stride for offset, stride in zip(self.offsets, strides, strict=True))
        starts = np.array([first])
        for size, stride in zip(self.sizes[:last], strides, strict=False):
            starts = (starts[:, None] + np.arange(size) * stride).reshape(-1)
        return [(int(start), length) for start in starts]


class Layout:
    """The blocks of one rank."""

    def __init__(self, ranks: Ranks, dims: Mapping[str, int]) -> None:
        """`dims`: the dimension that the ranks of `ranks.tensor` divide, by the parameter's name. They all have the
        whole of the others."""
        self.ranks = ranks
        self.dims = dims

    def box(self, name: str, shape: torch.Size | tuple[int, ...]) -> Box:
        """Return the block of a parameter. Every rank has all of a scalar."""
        whole = Box((0,) * len(shape), tuple(shape))
        if not shape:
            return whole
        if name in self.dims:
            whole = whole.cut(self.dims[name], self.ranks.tensor.rank, self.ranks.tensor.size)
        return whole.cut(0, self.ranks.data.rank, self.ranks.data.size)

    def runs(self, name: str, shape: torch.Size) -> list[tuple[int, int]]:
        """Return the runs of the block, as `rolemesh_training.parts` wants them."""
        return self.box(name, shape).runs(tuple(shape))

    def copies(self, name: str) -> int:
        """Return the number of ranks that have the same block."""
        return 1 if name in self.dims else self.ranks.tensor.size


class MeshBlocks(Blocks):
    """Blocks in any dimension."""

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        layout: Layout,
        local: Callable[[torch.Tensor], torch.Tensor],
        aliases: Mapping[str, torch.Tensor],
    ) -> None:
        super().__init__(parameters, layout.ranks.data.rank, layout.ranks.data.size, local, aliases)
        self.layout = layout

    def offsets(self, name: str) -> tuple[int, ...]:
        return self.layout.box(name, self.shape(name)).offsets

    def sent(self, data: Mapping[str, torch.Tensor]) -> dict[str, Shard]:
        """Return `data` as shards of which no two ranks have the same element: of a block with copies, each rank has a
        part."""
        found = self.shards(data)
        tensor = self.layout.ranks.tensor
        for name, shard in found.items():
            if self.layout.copies(name) > 1 and shard.shape:
                part = Box(shard.offsets, tuple(shard.data.shape)).cut(0, tensor.rank, tensor.size)
                start = part.offsets[0] - shard.offsets[0]
                found[name] = Shard(shard.data[start : start + part.sizes[0]], shard.shape, part.offsets)
        return found


def _with(values: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return (*values[:place], value, *values[place + 1 :])
