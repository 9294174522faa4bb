"""Rows as items, and back."""

from __future__ import annotations

from bdb import BdbQuit
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from rolemesh.api.batch import Batch, Ragged
from rolemesh.api.partition import Balanced, Broadcast, Split
from rolemesh.api.service import CallError
from rolemesh.api.workload import RankContext, operator_spec
from rolemesh.errors import PluginError, RolemeshError
from rolemesh.graph.routes import Collate, Share, route
from rolemesh_runtime.breaches import ServiceBreach
from rolemesh_runtime.items import Items, apart, assembled
from rolemesh_runtime.values import gather, select

VALUES = [
    Batch({"x": np.arange(7), "name": list("abcdefg")}),
    Ragged.from_rows([[1], [2, 3], [], [4], [5, 6], [7], [8]]),
    list(range(7)),
    np.arange(14).reshape(7, 2),
]


def items_of(how: Balanced) -> tuple[RankContext, Items]:
    ctx = RankContext(role="work", rank=1)
    ctx.step = 4
    return ctx, Items(ctx, "rows", how)


def run(method: Any, value: Any, size: int) -> list[tuple[Any, ...]]:
    """All items, the last first."""
    numbers = reversed(range(apart(value, size)[1]))
    return list(items_of(Balanced(size))[1].run(method, {"rows": value}, numbers))


def same(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else a == b


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("size", [1, 2, 3, 10])
@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_rows_come_in_order_from_all_ranks(value: Any, size: int, consumers: int) -> None:
    total, count = apart(value, size)
    assert (total, count) == (7, -(-7 // size))
    made = run(lambda rows: rows, value, size)
    way = route(Balanced(size), 3, Split(), consumers)
    pieces = []
    for consumer in range(consumers):
        assert list(way.sources(consumer)) == [0, 1, 2]
        sent = [[select(item, Share(consumer, consumers)) for item in made[i::3]] for i in range(3)]
        pieces.append(gather(sent, way.combine))
    assert same(gather([pieces], route(Split(), consumers, Broadcast(), 1).combine), value)
    assert same(gather([made], route(Balanced(size), 3, Broadcast(), 2).combine), value)


def test_an_item_that_is_missing_is_waited_for_and_one_that_comes_twice_counts_once() -> None:
    made = run(lambda rows: rows, [1, 2, 3], 1)[::-1]
    assert assembled(made[:2]) is None
    assert assembled([*made, (1, 3, 1, 3, ["other"])]) == [1, 2, 3]
    with pytest.raises(ValueError, match="missing"):
        gather([made[:2]], route(Balanced(), 1, Broadcast(), 1).combine)


def test_a_value_without_rows_is_one_item() -> None:
    empty = Batch({"x": np.zeros(0)})
    assert apart(empty, 4) == (0, 1)
    assert assembled(run(lambda rows: rows, empty, 4)) == empty
    with pytest.raises(PluginError, match="no rows to share out"):
        apart({"x": 1}, 1)


def test_an_operator_returns_one_row_for_each() -> None:
    with pytest.raises(PluginError, match="it returned 1 rows for an item of 2"):
        run(lambda rows: rows[:1], [1, 2], 2)


def test_an_operator_may_return_several_rows_for_each() -> None:
    _, items = items_of(how := Balanced(2, results=3))
    made = list(items.run(lambda rows: np.repeat(rows, 3), {"rows": np.arange(5)}, [2, 0, 1]))
    way = route(how, 3, Split(), 4)
    parts = [gather([[select(item, Share(consumer, 4))] for item in made], way.combine) for consumer in range(4)]
    assert sorted(map(len, parts)) == [3, 4, 4, 4]
    assert np.concatenate(parts).tolist() == np.repeat(np.arange(5), 3).tolist()
    with pytest.raises(PluginError, match=r"it returned 2 rows for an item of 2") as caught:
        list(items.run(lambda rows: rows, {"rows": np.arange(5)}, [0]))
    assert "a balanced operator returns 3 per row" in str(caught.value)


def odd(rows: Any) -> Any:
    if (rows["x"] % 2 == 0).any():
        raise KeyError("even")
    return rows | {"y": rows["x"] * 2.0}


@pytest.mark.parametrize(
    ("size", "which"), [(1, "row 2 of step 4 (item 2 of 5)"), (2, "rows 2 to 3 of step 4 (item 1 of 3)")]
)
def test_the_exception_of_an_item_names_role_rank_and_rows(size: int, which: str) -> None:
    _, items = items_of(Balanced(size))
    with pytest.raises(KeyError) as caught:
        list(items.run(odd, {"rows": Batch({"x": np.arange(5)})}, [2 // size]))
    assert caught.value.__notes__ == [f"in {which}, role work, rank 1"]


def test_rows_that_fail_are_left_out_counted_and_reported_once() -> None:
    ctx, items = items_of(Balanced(1, on_error="drop"))
    value = Batch({"x": np.arange(5)})
    made = list(items.run(odd, {"rows": value}, range(5)))
    assert assembled(made) == Batch({"x": np.array([1, 3]), "y": np.array([2.0, 6.0])})
    left_out = {item: sums for item, (_, sums) in ctx.port.by_item.items()}
    assert left_out == {item: {"rows_left_out": 1} for item in (0, 2, 4)}
    assert list(ctx.port.records.values()) == [
        "row 0 of step 4 (item 0 of 5), role work, rank 1: left out after KeyError: 'even'; the log has further ones"
    ]
    pieces = [gather([[select(item, Share(i, 5)) for item in made]], Collate()) for i in range(5)]
    assert [piece.rows for piece in pieces] == [0, 1, 0, 1, 0]
    assert all(piece.keys() == {"x", "y"} for piece in pieces)


def test_a_step_without_rows_has_the_columns_of_those_before_it() -> None:
    _, items = items_of(Balanced(2, on_error="drop"))
    even = Batch({"x": np.arange(4) * 2})
    assert assembled(items.run(odd, {"rows": even}, range(2))) == even[:0]
    list(items.run(odd, {"rows": Batch({"x": np.array([1, 3])})}, range(1)))
    assert assembled(items.run(odd, {"rows": even}, range(2))) == Batch({"x": np.zeros(0, int), "y": np.zeros(0)})


@pytest.mark.parametrize(
    ("error", "fails"),
    [
        (CallError("down"), False),
        (ServiceBreach("wrong", kind="misbehaved"), True),
        (RolemeshError("no such service"), True),
        (BdbQuit(), True),
        (SystemExit(), True),
    ],
)
def test_errors_that_are_none_of_a_row_fail_the_job(error: BaseException, fails: bool) -> None:
    def broken(rows: Any) -> Any:
        raise error

    _, items = items_of(Balanced(on_error="drop"))
    with pytest.raises(type(error)) if fails else nullcontext():
        list(items.run(broken, {"rows": [1]}, range(1)))


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
        (one, {"rows": Balanced(results=0), "weights": Broadcast()}, Split(), "at least 1"),
        (one, {"rows": Balanced(on_error="skip"), "weights": Broadcast()}, Split(), "on_error is 'fail' or 'drop'"),  # type: ignore[arg-type]
        (one, {"rows": Balanced(1, 2), "weights": Broadcast()}, Split(), "needs an async def"),
        (one, {"rows": Split(), "weights": Broadcast()}, Balanced(), "no such input"),
        (chunks, {"rows": Balanced()}, Split(), "whole"),
    ],
)
def test_an_operator_whose_rows_cannot_be_shared_is_refused(function: Any, inputs: Any, returns: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        operator_spec(function, inputs=inputs, returns=returns)


def test_a_result_lies_where_it_was_made() -> None:
    assert operator_spec(many, inputs={"rows": Balanced(2, 8)}, returns=Split()).returns == Balanced(2, 8)
