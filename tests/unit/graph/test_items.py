"""Rows as items, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rolemesh.api.batch import Batch, Ragged
from rolemesh.api.partition import Balanced, Broadcast, Split
from rolemesh.api.workload import operator_spec
from rolemesh.graph.items import apart, assembled, run_items
from rolemesh.graph.routes import Share, route
from rolemesh.graph.values import gather, select

VALUES = [
    Batch({"x": np.arange(7), "name": list("abcdefg")}),
    Ragged.from_rows([[1], [2, 3], [], [4], [5, 6], [7], [8]]),
    list(range(7)),
    np.arange(14).reshape(7, 2),
]


def same(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else a == b


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("size", [1, 2, 3, 10])
@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_rows_come_in_order_whoever_made_them(value: Any, size: int, consumers: int) -> None:
    total, count = apart(value, size)
    assert (total, count) == (7, -(-7 // size))
    made = list(run_items(lambda rows: rows, {"rows": value}, "rows", size, iter(reversed(range(count)))))
    way = route(Balanced(size), 3, Split(), consumers)
    pieces = []
    for consumer in range(consumers):
        assert list(way.sources(consumer)) == [0, 1, 2]
        sent = [[select(item, Share(consumer, consumers)) for item in made[i::3]] for i in range(3)]
        pieces.append(gather(sent, way.combine))
    assert same(gather([pieces], route(Split(), consumers, Broadcast(), 1).combine), value)
    assert same(gather([made], route(Balanced(size), 3, Broadcast(), 2).combine), value)


def test_an_item_that_is_missing_is_waited_for_and_one_that_comes_twice_counts_once() -> None:
    made = list(run_items(lambda rows: rows, {"rows": [1, 2, 3]}, "rows", 1, iter(range(3))))
    assert assembled(made[:2]) is None
    assert assembled([*made, (1, 3, 1, 3, ["other"])]) == [1, 2, 3]
    with pytest.raises(ValueError, match="missing"):
        gather([made[:2]], route(Balanced(), 1, Broadcast(), 1).combine)


def test_a_value_without_rows_is_one_item() -> None:
    empty = Batch({"x": np.zeros(0)})
    assert apart(empty, 4) == (0, 1)
    assert assembled(run_items(lambda rows: rows, {"rows": empty}, "rows", 4, iter(range(1)))) == empty
    with pytest.raises(TypeError, match="no rows to share out"):
        apart({"x": 1}, 1)


def test_an_operator_returns_one_row_for_each() -> None:
    with pytest.raises(ValueError, match="it returned 1 rows for an item of 2"):
        list(run_items(lambda rows: rows[:1], {"rows": [1, 2]}, "rows", 2, iter(range(1))))


def one(rows: Any, weights: Any = None) -> Any: ...


async def many(rows: Any) -> Any: ...


def chunks(rows: Any) -> Any:
    yield rows


@pytest.mark.parametrize(
    ("function", "inputs", "returns", "why"),
    [
        (one, {"rows": Balanced(), "weights": Split()}, Split(), "only as Broadcast"),
        (one, {"rows": Balanced(), "weights": Balanced()}, Split(), "only as Broadcast"),
        (one, {"rows": Balanced(), "weights": Broadcast()}, None, "returns=Split"),
        (one, {"rows": Balanced(), "weights": Broadcast()}, Broadcast(), "returns=Split"),
        (one, {"rows": Balanced(0), "weights": Broadcast()}, Split(), "at least 1"),
        (one, {"rows": Balanced(1, 2), "weights": Broadcast()}, Split(), "needs an async def"),
        (one, {"rows": Split(), "weights": Broadcast()}, Balanced(), "no such input"),
        (chunks, {"rows": Balanced()}, Split(), "whole"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(function: Any, inputs: Any, returns: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        operator_spec(function, inputs=inputs, returns=returns)


def test_what_is_returned_lies_where_it_was_made() -> None:
    assert operator_spec(many, inputs={"rows": Balanced(2, 8)}, returns=Split()).returns == Balanced(2, 8)
