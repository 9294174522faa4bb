"""Items: the rows of a value, shared out by demand, and put together again in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rolemesh.api.batch import Batch, Ragged, concat
from rolemesh.graph.routes import Part, Share


class Item(NamedTuple):
    """The rows that an operator has made of item `number` of `items`, which begins at row `start` of `total` rows.

    Sent as a plain tuple.
    """

    number: int
    items: int
    start: int
    total: int
    rows: Any


def apart(value: Any, size: int) -> tuple[int, int]:
    """The rows of `value`, and the number of items of `size` rows; a value without rows is one item.

    Raises `TypeError` for a value without rows.
    """
    total = _rows(value)
    return total, max(1, -(-total // size))


def item_of(value: Any, size: int, index: int) -> Any:
    """The rows of item `index`, as a view."""
    return value[index * size : (index + 1) * size]


def run_items(
    method: Callable[..., Any], arguments: Mapping[str, Any], param: str, size: int, chosen: Iterator[int]
) -> Iterator[tuple[Any, ...]]:
    """Call `method` with each of the `chosen` items of ``arguments[param]`` in turn; its rows as an `Item`'s tuple.

    Raises what `method` raises, and `ValueError` unless it returns as many rows as it is given.
    """
    for index in chosen:
        given = {**arguments, param: item_of(arguments[param], size, index)}
        yield item_made(arguments[param], size, index, given[param], method(**given))


def item_made(value: Any, size: int, index: int, given: Any, made: Any) -> tuple[Any, ...]:
    """The rows `made` of item `index` of `value`, which was `given`. Raises `ValueError` unless they are as many."""
    total, count = apart(value, size)
    before, after = _rows(given), _rows(made)
    if before != after:
        raise ValueError(f"it returned {after} rows for an item of {before}; a balanced operator returns one per row")
    return index, count, index * size, total, made


def cut(item: Sequence[Any], share: Share) -> tuple[Any, ...]:
    """Of an item what lies in the share; maybe no rows."""
    number, items, start, total, rows = item
    low, high = Part(0, share.index, share.index + 1, share.count).bounds(total)
    low, high = max(0, low - start), min(_rows(rows), high - start)
    return number, items, start, total, rows[low : max(low, high)]


def assembled(items: Iterable[Sequence[Any]]) -> Any | None:
    """The rows of all items in order, or None as long as one is missing."""
    found: dict[int, Item] = {}
    for each in items:
        item = Item(*each)
        found.setdefault(item.number, item)
    if not found or len(found) < next(iter(found.values())).items:
        return None
    return joined([found[number].rows for number in sorted(found)])


def joined(parts: Sequence[Any]) -> Any:
    """The rows of several items as one value."""
    return concat([part for part in parts if _rows(part)] or parts[:1])


def _rows(value: Any) -> int:
    if isinstance(value, Batch):
        return value.rows
    if isinstance(value, (Ragged, list, tuple)):
        return len(value)
    if shape := getattr(value, "shape", ()):
        return int(shape[0])
    raise TypeError(f"a {type(value).__name__} has no rows to share out; use a Batch, an array or a list")
