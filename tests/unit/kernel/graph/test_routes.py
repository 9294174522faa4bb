"""Routes carry every row exactly once, in order, for any world sizes; what does not fit is refused with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolemesh.api.batch import Batch, Ragged, Shard, Shards, concat
from rolemesh.api.partition import Balanced, Broadcast, Partial, Sharded, Split
from rolemesh.graph.routes import Part, Route, RouteError, Whole, chunk_bounds, declared, describe, route
from rolemesh_runtime.values import combine, select

SIZES = st.integers(1, 6)


def deliver(path: Route, values: Sequence[Any]) -> list[Any]:
    """Carry `values` (one per producer rank) over the route: what each consumer rank gets."""
    inbox: dict[tuple[int, int], Any] = {}
    for producer in range(path.producers):
        for send in path.sends(producer):
            for consumer in send.consumers:
                assert (producer, consumer) not in inbox, "two messages of one value between the same ranks"
                inbox[producer, consumer] = select(values[producer], send.selection)
    sources = [path.sources(consumer) for consumer in range(path.consumers)]
    expected = {(p, c) for c, producers in enumerate(sources) for p in producers}
    assert set(inbox) == expected, "what is sent and what is awaited differ"
    return [combine([inbox[p, c] for p in producers], path.combine) for c, producers in enumerate(sources)]


def uneven(array: np.ndarray, cuts: Sequence[int], axis: int = 0) -> list[np.ndarray]:
    """Split at sorted cut points given modulo the extent."""
    extent = array.shape[axis]
    return np.split(array, sorted(cut % (extent + 1) for cut in cuts), axis=axis)


@st.composite
def split_arrays(draw: st.DrawFn, axis: int = 0) -> tuple[np.ndarray, list[np.ndarray]]:
    """A matrix of distinct numbers and an uneven split of it over 1 to 6 ranks."""
    rows, columns = draw(st.integers(0, 12)), draw(st.integers(0, 7))
    array = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    m = draw(SIZES)
    return array, uneven(array, draw(st.lists(st.integers(0, 50), min_size=m - 1, max_size=m - 1)), axis)


@given(split_arrays(), SIZES)
def test_split_to_split_keeps_every_row_once_and_in_order(data: tuple[np.ndarray, list[np.ndarray]], n: int) -> None:
    whole, parts = data
    got = deliver(route(Split(), len(parts), Split(), n), parts)
    np.testing.assert_array_equal(np.concatenate(got), whole)


@given(split_arrays(), SIZES)
def test_split_to_split_shares_even_rows_evenly(data: tuple[np.ndarray, list[np.ndarray]], n: int) -> None:
    m = len(data[1])
    got = deliver(route(Split(), m, Split(), n), [np.zeros(n) for _ in range(m)])
    assert {len(part) for part in got} == {m}


@given(st.integers(0, 20), SIZES, SIZES)
def test_rows_come_back_to_the_ranks_that_sent_as_many_each_and_are_cut_as_one_rank_would(
    rows: int, m: int, n: int
) -> None:
    sent = np.split(np.arange(m * rows), m)
    there = deliver(route(Split(), m, Split(), n), sent)
    for got, same in zip(there, deliver(route(Split(), 1, Split(), n), [np.arange(m * rows)]), strict=True):
        np.testing.assert_array_equal(got, same)
    for back, mine in zip(deliver(route(Split(), n, Split(), m), there), sent, strict=True):
        np.testing.assert_array_equal(back, mine)


def test_equal_world_sizes_hand_the_value_on_untouched() -> None:
    parts = [object(), object(), object()]
    got = deliver(route(Split(), 3, Split(), 3), parts)
    assert all(a is b for a, b in zip(got, parts, strict=True))


@given(split_arrays(axis=0), SIZES)
def test_all_to_all_turns_rows_into_columns(data: tuple[np.ndarray, list[np.ndarray]], n: int) -> None:
    whole, parts = data
    got = deliver(route(Split(0), len(parts), Split(1), n), parts)
    np.testing.assert_array_equal(np.concatenate(got, axis=1), whole)
    assert all(len(part) == len(whole) for part in got)


@given(split_arrays(axis=1), SIZES)
def test_all_to_all_turns_columns_into_rows(data: tuple[np.ndarray, list[np.ndarray]], n: int) -> None:
    whole, parts = data
    got = deliver(route(Split(1), len(parts), Split(0), n), parts)
    np.testing.assert_array_equal(np.concatenate(got), whole)


@given(split_arrays(), SIZES)
def test_split_to_broadcast_gives_all_ranks_the_whole(data: tuple[np.ndarray, list[np.ndarray]], n: int) -> None:
    whole, parts = data
    for got in deliver(route(Split(), len(parts), Broadcast(), n), parts):
        np.testing.assert_array_equal(got, whole)


@given(split_arrays(), SIZES)
def test_broadcast_to_split_cuts_the_value_into_consecutive_slices(
    data: tuple[np.ndarray, list[np.ndarray]], n: int
) -> None:
    whole, m = data[0], len(data[1])
    got = deliver(route(Broadcast(), m, Split(), n), [whole] * m)
    np.testing.assert_array_equal(np.concatenate(got), whole)
    assert max(map(len, got)) - min(map(len, got)) <= 1


@given(SIZES, SIZES)
def test_broadcast_to_broadcast_encodes_once_for_several_consumers(m: int, n: int) -> None:
    path = route(Broadcast(), m, Broadcast(), n)
    values = [f"copy {rank}" for rank in range(m)]
    assert deliver(path, values) == [values[rank % m] for rank in range(n)]
    assert all(len(path.sends(producer)) <= 1 for producer in range(m))


@given(SIZES, SIZES, st.sampled_from(["sum", "mean"]), st.integers(0, 9))
def test_partial_is_reduced_at_the_consumer(m: int, n: int, op: Any, rows: int) -> None:
    addends = [np.arange(rows * 2, dtype=np.float64).reshape(rows, 2) * (rank + 1) for rank in range(m)]
    total = np.sum(addends, axis=0) if op == "sum" else np.mean(addends, axis=0)
    for got in deliver(route(Partial(op), m, Broadcast(), n), addends):
        np.testing.assert_allclose(got, total)
    np.testing.assert_allclose(np.concatenate(deliver(route(Partial(op), m, Split(), n), addends)), total)


def shards_of(tensors: dict[str, np.ndarray], count: int, dim: int) -> list[Shards]:
    """The layout of ``torch.chunk(tensor, count, dim)``, empty chunks included."""
    result = []
    for rank in range(count):
        shards = Shards()
        for name, tensor in tensors.items():
            low, high = chunk_bounds(tensor.shape[dim], rank, count)
            index = (slice(None),) * dim + (slice(low, high),)
            shards[name] = Shard(tensor[index], tensor.shape, (0,) * dim + (low,) + (0,) * (tensor.ndim - dim - 1))
        result.append(shards)
    return result


def held(value: np.ndarray | Shard) -> np.ndarray:
    return value.data if isinstance(value, Shard) else value


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, np.ndarray]:
    shapes = draw(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=3))
    return {f"layer{i}": np.random.default_rng(i).normal(size=shape) for i, shape in enumerate(shapes)}


@given(tensors(), SIZES, SIZES, st.integers(0, 1))
def test_sharded_to_broadcast_assembles_plain_arrays(named: dict[str, np.ndarray], m: int, n: int, dim: int) -> None:
    for got in deliver(route(Sharded(dim), m, Broadcast(), n), shards_of(named, m, dim)):
        assert type(got) is dict
        assert got.keys() == named.keys()
        for name, tensor in named.items():
            np.testing.assert_array_equal(got[name], tensor)


@given(tensors(), SIZES, SIZES, st.integers(0, 1), st.integers(0, 1))
def test_sharded_to_sharded_gives_the_chunk_layout(
    named: dict[str, np.ndarray], m: int, n: int, old: int, new: int
) -> None:
    got = deliver(route(Sharded(old), m, Sharded(new), n), shards_of(named, m, old))
    assert got == shards_of(named, n, new)


@given(tensors(), SIZES, SIZES)
def test_broadcast_to_sharded_cuts_a_dict_of_arrays(named: dict[str, np.ndarray], m: int, n: int) -> None:
    assert deliver(route(Broadcast(), m, Sharded(), n), [named] * m) == shards_of(named, n, 0)


@given(tensors(), SIZES, SIZES, st.integers(0, 1))
def test_tensors_come_in_the_pieces_in_which_they_are_held(
    named: dict[str, np.ndarray], m: int, n: int, dim: int
) -> None:
    for src, parts in [(Sharded(dim), shards_of(named, m, dim)), (Broadcast(), [named] * m)]:
        for got in deliver(route(src, m, Sharded(dim=None), n), parts):
            assert got.keys() == named.keys()
            for name, tensor in named.items():
                own = np.full_like(tensor, np.nan)
                for shard in got[name]:
                    assert not tensor.size or any(np.shares_memory(shard.data, held(of[name])) for of in parts)
                    shard.into(own)
                np.testing.assert_array_equal(own, tensor)


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=12), SIZES, SIZES)
def test_batches_with_every_kind_of_column_survive_the_way(rows: list[list[int]], m: int, n: int) -> None:
    import torch

    count = len(rows)
    batch = Batch(
        {
            "id": np.arange(count),
            "text": [f"row {i}" for i in range(count)],
            "tokens": Ragged.from_rows(rows, dtype=np.int64),
            "logits": torch.arange(count * 3, dtype=torch.bfloat16).reshape(count, 3),
        }
    )
    middle = deliver(route(Broadcast(), 1, Split(), m), [batch])
    again = deliver(route(Split(), m, Split(), n), middle)
    assert concat([part for part in again if part.rows] or again[:1]) == batch
    assert deliver(route(Split(), n, Broadcast(), 2), again) == [batch, batch]


@given(SIZES, SIZES)
def test_equal_payloads_are_encoded_once_and_consumers_ascend(m: int, n: int) -> None:
    for pair in [(Split(), Broadcast()), (Split(), Split()), (Broadcast(), Split()), (Sharded(), Broadcast())]:
        path = route(pair[0], m, pair[1], n)
        for sends in map(path.sends, range(m)):
            assert len({send.selection for send in sends}) == len(sends)
            assert all(list(send.consumers) == sorted(send.consumers) for send in sends)


def test_the_overlap_of_two_and_three_ranks_is_exact_thirds() -> None:
    path = route(Split(), 2, Split(), 3)
    assert path.sends_to(0, 0) == Part(0, 0, 2, 3)
    assert path.sends_to(0, 1) == Part(0, 2, 3, 3)
    assert path.sends_to(0, 2) is None
    assert [list(path.sources(consumer)) for consumer in range(3)] == [[0], [0, 1], [1]]
    assert route(Split(), 4, Split(), 2).sends_to(3, 1) == Whole()


def test_between_two_single_ranks_every_row_partition_is_the_identity() -> None:
    for src in (Split(), Broadcast(), Split(1)):
        for dst in (Split(), Broadcast()):
            path = route(src, 1, dst, 1)
            value = object()
            assert path.kind == "identity"
            assert deliver(path, [value]) == [value]


@pytest.mark.parametrize(
    ("src", "m", "dst", "n", "why"),
    [
        (Split(), 2, Partial(), 2, "no partial sums"),
        (Broadcast(), 1, Partial(), 1, "no partial sums"),
        (Partial(), 2, Partial(), 3, "rank by rank"),
        (Partial("sum"), 2, Partial("mean"), 2, "a sum is not a mean"),
        (Split(), 2, Sharded(), 2, "not named tensors"),
        (Sharded(), 2, Split(), 2, "no rows"),
        (Partial(), 2, Sharded(), 2, "not sharded"),
        (Balanced(), 2, Split(1), 2, "items are whole rows"),
        (Balanced(), 2, Partial(), 2, "items are whole rows"),
        (Sharded(), 2, Balanced(), 2, "no rows to share out"),
        (Split(-1), 2, Balanced(), 2, "negative axes"),
        (Split(-1), 2, Split(), 2, "negative axes"),
    ],
)
def test_the_error_for_pairs_that_do_not_fit_has_a_reason_and_a_remedy(
    src: Any, m: int, dst: Any, n: int, why: str
) -> None:
    with pytest.raises(RouteError, match=why) as caught:
        route(src, m, dst, n)
    assert f"over {m} rank" in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("partition", "written"),
    [
        (Split(), "Split()"),
        (Split(1), "Split(1)"),
        (Partial(), "Partial()"),
        (Partial("mean"), "Partial('mean')"),
        (Sharded(None), "Sharded(None)"),
        (Balanced(), "Balanced()"),
        (Balanced(1, 8), "Balanced(1, 8)"),
        (Balanced(2, on_error="drop"), "Balanced(2, 1, 'drop')"),
    ],
)
def test_a_partition_is_shown_as_it_is_written(partition: Any, written: str) -> None:
    assert describe(partition) == written


def test_the_result_of_balanced_rows_is_shown_as_its_operator_declares_it() -> None:
    assert declared(Balanced(1, 8)) == Split()
    assert declared(Broadcast()) == Broadcast()
    with pytest.raises(RouteError, match=r"^Split\(\) over 2 ranks cannot feed Split\(1\) over 1 rank"):
        route(Balanced(1, 8), 2, Split(1), 1)
