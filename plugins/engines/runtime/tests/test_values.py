"""Selecting takes views, combining copies only when it must, and what cannot be split says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rolemesh.api.batch import Batch, Ragged, Shard, Shards
from rolemesh.errors import PluginError
from rolemesh.graph.routes import Assemble, Block, Concat, Part, Pieces, Reduce, Reshard
from rolemesh_runtime.values import combine, select

HALF = Part(0, 1, 2, 2)


def shard(values: Any, shape: tuple[int, ...], offset: int) -> Shards:
    return Shards(w=Shard(values, shape, (offset,) + (0,) * (len(shape) - 1)))


def test_selecting_rows_shares_memory() -> None:
    array = np.arange(8).reshape(4, 2)
    assert np.shares_memory(select(array, HALF), array)
    batch = select(Batch({"a": array, "r": Ragged(np.arange(4), np.arange(5))}), HALF)
    assert np.shares_memory(batch["a"], array)
    tensor = torch.arange(4)
    assert select(tensor, HALF).data_ptr() == tensor[2:].data_ptr()


def test_selecting_along_another_axis_slices_the_columns_of_a_batch() -> None:
    batch = Batch({"a": np.arange(8).reshape(2, 4)})
    got = select(batch, Part(1, 1, 2, 2))
    np.testing.assert_array_equal(got["a"], [[2, 3], [6, 7]])


@pytest.mark.parametrize("value", [3, "text", {"a": 1}, np.float32(1)])
def test_a_value_without_rows_is_refused_with_a_remedy(value: Any) -> None:
    with pytest.raises(PluginError, match=r"no rows to split.*Broadcast"):
        select(value, HALF)


def test_a_list_has_no_second_axis() -> None:
    with pytest.raises(PluginError, match="list has no axis 1"):
        select(Batch({"names": ["a", "b"]}), Part(1, 0, 1, 2))


def test_blocks_need_named_tensors() -> None:
    with pytest.raises(PluginError, match="ndarray has no named tensors"):
        select(np.zeros(3), Block(0, 0, 2))
    with pytest.raises(PluginError, match="'lr' is a float"):
        select({"lr": 0.1}, Block(0, 0, 2))


def test_empty_parts_change_neither_dtype_nor_copy() -> None:
    rows = np.arange(3)
    assert combine([np.zeros(0), rows, np.zeros(0)], Concat(0)) is rows
    assert len(combine([rows[:0], rows[:0]], Concat(0))) == 0


def test_reduction_leaves_the_parts_alone_and_works_on_dicts_and_tensors() -> None:
    parts = [{"g": torch.full((2,), float(i)), "n": i} for i in (1, 2, 4)]
    total = combine(parts, Reduce("sum"))
    assert total["g"].tolist() == [7.0, 7.0]
    assert total["n"] == 7
    assert [part["g"][0].item() for part in parts] == [1, 2, 4]
    mean = combine([Batch({"x": np.float32([2])}), Batch({"x": np.float32([4])})], Reduce("mean"))
    assert mean == Batch({"x": np.float32([3])})


def test_reduction_refuses_values_that_cannot_be_added_up() -> None:
    with pytest.raises(PluginError, match="list cannot be added up"):
        combine([[1], [2]], Reduce("sum"))
    with pytest.raises(PluginError, match="different shapes"):
        combine([np.zeros(2), np.zeros(1)], Reduce("sum"))
    with pytest.raises(PluginError, match="different names"):
        combine([{"a": 1}, {"b": 1}], Reduce("sum"))


def test_a_shard_that_is_the_whole_tensor_is_returned_without_a_copy() -> None:
    full = np.arange(6).reshape(3, 2)
    assert combine([shard(full, (3, 2), 0)], Assemble())["w"] is full
    assert combine([shard(full, (3, 2), 0), shard(full.copy(), (3, 2), 0)], Assemble())["w"] is full
    piece = select(shard(full, (3, 2), 0), Block(0, 1, 3))
    again = combine([select(shard(full[:1], (3, 2), 0), Block(0, 1, 3)), piece], Reshard(0, 3))
    assert np.shares_memory(again["w"].data, full)


def test_tensors_without_the_dimension_stay_whole_on_every_rank() -> None:
    scalar = Shards(step=Shard(np.array(3.0), (), ()))
    parts = [select(scalar, Block(0, 1, 2)) for _ in range(2)]
    assert combine(parts, Reshard(0, 2)) == scalar


def test_torch_shards_are_assembled_with_their_dtype() -> None:
    full = torch.arange(6, dtype=torch.bfloat16).reshape(3, 2)
    parts = [shard(full[:2], (3, 2), 0), shard(full[2:], (3, 2), 2)]
    got = combine(parts, Assemble())["w"]
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, full)


def test_blocks_in_two_dimensions_are_assembled() -> None:
    full = np.arange(12).reshape(3, 4)
    cuts = [(slice(0, 1), slice(0, 4)), (slice(1, 3), slice(0, 1)), (slice(1, 3), slice(1, 4))]
    parts = [Shards(w=Shard(full[cut], (3, 4), (cut[0].start, cut[1].start))) for cut in cuts]
    np.testing.assert_array_equal(combine(parts, Assemble())["w"], full)


def test_torch_pieces_are_copied_where_they_belong() -> None:
    full = torch.arange(6, dtype=torch.bfloat16).reshape(3, 2)
    own = torch.zeros_like(full)
    for piece in combine([shard(full[2:], (3, 2), 2), shard(full[:2], (3, 2), 0)], Pieces())["w"]:
        piece.into(own)
    assert torch.equal(own, full)


def test_gaps_among_pieces_are_named() -> None:
    with pytest.raises(PluginError, match=r"'w': the blocks have 2 elements, the tensor of shape \(4,\) has 4"):
        combine([shard(np.zeros(1), (4,), 0), shard(np.zeros(1), (4,), 3)], Pieces())


def test_gaps_and_overlaps_are_named() -> None:
    with pytest.raises(PluginError, match=r"'w': the blocks have 2 elements, the tensor of shape \(4,\) has 4"):
        combine([shard(np.zeros(1), (4,), 0), shard(np.zeros(1), (4,), 3)], Assemble())
    with pytest.raises(PluginError, match="overlap"):
        combine([shard(np.zeros(2), (4,), 0), shard(np.zeros(2), (4,), 1)], Assemble())
    with pytest.raises(PluginError, match="global shape"):
        combine([shard(np.zeros(2), (4,), 0), shard(np.zeros(2), (5,), 2)], Assemble())
    with pytest.raises(PluginError, match="no rank has the block"):
        combine([select(shard(np.zeros(2), (4,), 0), Block(0, 1, 2))], Reshard(0, 2))


def test_plain_arrays_where_shards_were_declared_are_refused() -> None:
    with pytest.raises(PluginError, match="dict came where Shards were declared"):
        combine([{"w": np.zeros(2)}, {"w": np.zeros(2)}], Assemble())
