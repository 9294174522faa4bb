"""Blocks of a mesh of ranks, and their way to any other mesh: judged by DTensor and by torch's distributed
checkpoints."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Replicate, _StridedShard
from torch.distributed.tensor.placement_types import Shard as Divided

from rolemesh.api.batch import Shard, Shards
from rolemesh.api.partition import Broadcast, Sharded
from rolemesh.graph.routes import route
from rolemesh_checkpoint.reshard import merge, reshard
from rolemesh_fsdp.layout import Layout, MeshBlocks
from rolemesh_runtime.values import combine, select
from rolemesh_training.group import Group, Ranks

MESHES = [(data, tensor) for data, tensor in product(range(1, 5), repeat=2) if data * tensor <= 4]
"""Data ranks times ranks that divide each layer: all meshes of 1 to 4 ranks."""
NAMES = {"rows": 0, "columns": 1, "whole": None}
"""A tensor of each kind that tensor parallelism has, with the dimension that it divides."""
DIMS = {name: dim for name, dim in NAMES.items() if dim is not None}

shapes = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 3))


def layouts(mesh: tuple[int, int]) -> list[Layout]:
    data, tensor = mesh
    every = data * tensor
    return [
        Layout(Ranks(Group(r, every), Group(r // tensor, data), Group(r % tensor, tensor), None), DIMS)
        for r in range(every)
    ]


def place(offsets: Any, sizes: Any) -> tuple[slice, ...]:
    return tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))


def blocks_of(tensors: dict[str, torch.Tensor], layout: Layout) -> MeshBlocks:
    names = {id(tensor): name for name, tensor in tensors.items()}

    def local(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[place(*layout.box(names[id(tensor)], tensor.shape))]

    return MeshBlocks(tensors, layout, local, tensors)


def tensors_of(shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
    return {name: torch.arange(prod(shape)).view(shape) + number * 1000 for number, name in enumerate(NAMES)}


@given(shapes, st.sampled_from(MESHES), st.sampled_from(sorted(NAMES)))
def test_a_block_is_that_of_dtensor(shape: tuple[int, ...], mesh: tuple[int, int], name: str) -> None:
    data, tensor = mesh
    if NAMES[name] == 0:  # in which DTensor wants even blocks
        shape = (shape[0] * data * tensor, *shape[1:])
    placements: dict[str, list[Any]] = {
        "rows": [_StridedShard(0, split_factor=tensor), Divided(0)],
        "columns": [Divided(0), Divided(1)],
        "whole": [Divided(0), Replicate()],
    }
    for rank, layout in enumerate(layouts(mesh)):
        wanted = _compute_local_shape_and_global_offset(shape, mesh, list(divmod(rank, tensor)), placements[name])
        found = layout.box(name, shape)
        assert found.sizes == tuple(wanted[0])
        assert not prod(found.sizes) or found.offsets == tuple(wanted[1])


@given(shapes, st.sampled_from(MESHES), st.sampled_from(sorted(NAMES)))
def test_the_runs_of_a_block_are_its_elements_in_order(
    shape: tuple[int, ...], mesh: tuple[int, int], name: str
) -> None:
    whole = np.arange(prod(shape)).reshape(shape)
    for layout in layouts(mesh):
        runs = layout.runs(name, torch.Size(shape))
        found = [whole.reshape(-1)[start : start + size] for start, size in runs]
        np.testing.assert_array_equal(np.concatenate([[], *found]), whole[place(*layout.box(name, shape))].reshape(-1))
        assert len(runs) <= 1 or name == "columns" or DIMS[name] == 0


@pytest.mark.parametrize("old", MESHES, ids=str)
@given(shapes, st.sampled_from(MESHES))
def test_a_snapshot_fills_the_blocks_of_any_other_mesh(
    old: tuple[int, int], shape: tuple[int, ...], new: tuple[int, int]
) -> None:
    tensors = tensors_of(shape)
    states = [each.shards(each.data) for each in (blocks_of(tensors, layout) for layout in layouts(old))]
    assert all(torch.equal(whole, tensors[name]) for name, whole in merge(states).items())
    for layout in layouts(new):
        wanted = blocks_of(tensors, layout)
        template = {name: torch.zeros_like(data) for name, data in wanted.data.items()}
        found = reshard(states, wanted.shards(template))
        assert all(torch.equal(found[name].data, data) for name, data in wanted.data.items())


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@given(shapes, st.integers(1, 4), st.integers(0, 2))
def test_each_element_goes_once_to_each_consumer_that_needs_it(
    mesh: tuple[int, int], shape: tuple[int, ...], consumers: int, dim: int
) -> None:
    tensors = tensors_of(shape)
    values = [Shards(each.sent(each.data)) for each in (blocks_of(tensors, layout) for layout in layouts(mesh))]
    along = route(Sharded(), len(values), Sharded(dim), consumers)
    for consumer in range(consumers):
        parts = [select(value, along.sends_to(rank, consumer)) for rank, value in enumerate(values)]
        found = combine(parts, along.combine)
        for name, tensor in tensors.items():
            shard = found[name]
            assert torch.equal(shard.data, tensor[place(shard.offsets, shard.data.shape)])
            sent = sum(part[name].data.numel() for part in parts)
            assert sent == shard.data.numel() == read_by_torch([value[name] for value in values], shard)
    whole = combine(values, route(Sharded(), len(values), Broadcast(), 1).combine)
    assert all(torch.equal(whole[name], tensor) for name, tensor in tensors.items())


def read_by_torch(stored: list[Shard], wanted: Shard) -> int:
    """The number of elements that a distributed checkpoint of `stored` reads for `wanted`."""
    chunk = lambda shard: ChunkStorageMetadata(torch.Size(shard.offsets), torch.Size(shard.data.shape))  # noqa: E731
    chunks = [chunk(shard) for shard in stored if shard.data.numel()]
    metadata = TensorStorageMetadata(TensorProperties(torch.int64), torch.Size(wanted.shape), chunks)
    items = create_read_items_for_chunk_list("w", metadata, [chunk(wanted)])
    return sum(prod(item.lengths) for item in items)
