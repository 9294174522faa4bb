"""Tensors that other processes read: in order, in bounded pieces, and without a trace."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from rolemesh_vllm.buckets import in_buckets


def some_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "a": torch.randn(3, 5),
        "transposed": torch.randn(4, 6).T,
        "half": torch.randn(7).to(torch.bfloat16),
        "none": torch.empty(0, 4),
        "scalar": torch.tensor(3),
        "large": torch.randn(100),
        "b": torch.arange(5, dtype=torch.int8),
    }


def test_tensors_arrive_in_order_in_buckets_of_a_bounded_size() -> None:
    given = some_tensors()
    sizes = []
    taken: dict[str, torch.Tensor] = {}
    for bucket in in_buckets(iter(given.items()), limit=200):
        sizes.append(sum(given[at.name].nbytes for at in bucket.placed))
        taken |= dict(bucket.tensors())
    assert [*taken] == [*given]
    assert all(size <= 200 for size in sizes if size != 400)
    assert len(sizes) > 2
    # Whoever has taken them may keep them: vLLM does, until it has all of a layer.
    for name, tensor in given.items():
        assert taken[name].dtype == tensor.dtype
        assert torch.equal(taken[name], tensor), name


def test_a_reader_may_write_to_its_own_copy() -> None:
    given = {"a": torch.zeros(4)}
    for bucket in in_buckets(iter(given.items())):
        dict(bucket.tensors())["a"].fill_(1)
        assert torch.equal(dict(bucket.tensors())["a"], torch.zeros(4))


def test_no_descriptor_and_no_name_is_left() -> None:
    def held() -> list[str]:
        return [path for path in map(os.path.realpath, Path("/proc/self/fd").iterdir()) if "memfd:weights" in path]

    before = held()
    for bucket in in_buckets(iter(some_tensors().items()), limit=1):
        assert len(bucket.placed) == 1
    assert held() == before
