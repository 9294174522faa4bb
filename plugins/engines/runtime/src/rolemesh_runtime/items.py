"""Items: the rows of a value are split into items, which ranks take by demand, and joined again in
order."""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from rolemesh.api.batch import Batch, Ragged, concat
from rolemesh.api.partition import Balanced
from rolemesh.api.rank_ref import RankRef
from rolemesh.api.service import CallError
from rolemesh.api.workload import RankContext
from rolemesh.errors import RolemeshError
from rolemesh.graph.routes import Part, Share
from rolemesh_runtime.breaches import breach, is_breach, refusing


def apart(value: Any, size: int) -> tuple[int, int]:
    """Return the number of rows of `value`, and the number of items of `size` rows; a value without
    rows is one item.

    Raises a `breach` for a value that cannot have rows.
    """
    total = _rows(value)
    return total, max(1, -(-total // size))


class Items:
    """The items of the balanced input `param` of an operator, from the view of one rank."""

    def __init__(self, ctx: RankContext, param: str, how: Balanced) -> None:
        self._ctx = ctx
        self._param = param
        self._how = how
        self._warned = False
        self._none = None

    @contextmanager
    def one(self, arguments: Mapping[str, Any], number: int) -> Iterator[SimpleNamespace]:
        """Enter item `number`. Yields an object on which `given` has the operator's arguments, and
        on which the caller sets `made`, the resulting rows.

        On exit the object's `sent` has the item's number, the number of items, its first row of the
        result, the number of rows of all items' results, and `made`. An exception gets the item's place as a note. If
        errors drop rows, the exception ends here and the item has no rows.
        """
        ctx = self._ctx
        value = arguments[self._param]
        start, each = number * self._how.rows, self._how.results
        total, count = apart(value, self._how.rows)
        given = value[start : start + self._how.rows]
        hand = SimpleNamespace(given={**arguments, self._param: given})
        rows = _rows(given)
        with ctx.with_item(number):
            try:
                yield hand
            except Exception as error:
                which = f"row {start}" if rows == 1 else f"rows {start} to {start + rows - 1}"
                where = f"{which} of step {ctx.step} (item {number} of {count}), {RankRef(ctx.role, ctx.rank).in_words}"
                error.add_note(f"in {where}")
                bug = isinstance(error, BdbQuit) or (
                    isinstance(error, RolemeshError) and (is_breach(error) or not isinstance(error, CallError))
                )
                if self._how.on_error == "fail" or bug:
                    raise
                ctx.log.warning("left out: %s", where, exc_info=error)
                ctx.count(rows_left_out=rows)
                if not self._warned:
                    ctx.warn(f"{where}: left out after {type(error).__name__}: {error}; the log has further ones")
                hand.made = given[:0] if self._none is None else self._none
                self._warned = True
            else:
                if (after := _rows(hand.made)) != rows * each:
                    what = f"it returned {after} rows for an item of {rows}"
                    raise breach(what, f"a balanced operator returns {'one' if each == 1 else each} per row")
                self._none = hand.made[:0]
        hand.sent = number, count, start * each, total * each, hand.made

    def run(self, method: Callable[..., Any], arguments: Mapping[str, Any], chosen: Iterable[int]) -> Iterator[Any]:
        """Call `method` with each of the `chosen` items in turn, and yield what is sent of each.

        Raises the errors of `method`, and a `breach` if it returns another number of rows than
        declared.
        """
        for number in chosen:
            with self.one(arguments, number) as hand:
                hand.made = method(**hand.given)
            yield hand.sent


def cut(item: Sequence[Any], share: Share) -> tuple[Any, ...]:
    """Return the part of an item that lies in the share; it may have no rows."""
    number, items, start, total, rows = item
    low, high = Part(0, share.index, share.index + 1, share.count).bounds(total)
    low = max(0, low - start)
    high = min(_rows(rows), high - start)
    return number, items, start, total, rows[low : max(low, high)]


def assembled(items: Iterable[Sequence[Any]]) -> Any | None:
    """Return the rows of all items in order, or None while one is missing."""
    found: dict[int, Sequence[Any]] = {}
    for item in items:
        found.setdefault(item[0], item)
    if not found or len(found) < next(iter(found.values()))[1]:
        return None
    return joined([found[number][4] for number in sorted(found)])


@refusing
def joined(parts: Sequence[Any]) -> Any:
    """Return the rows of several items as one value. If none has rows, it has the columns of the
    item with the most."""
    return concat([part for part in parts if _rows(part)] or [max(parts, key=len)])


def extent(value: Any, axis: int) -> int | None:
    """Return the length along `axis`, or None for a value without one."""
    if isinstance(value, (Batch, Ragged, list, tuple)):
        return None if axis else value.rows if isinstance(value, Batch) else len(value)
    shape = getattr(value, "shape", ())
    return int(shape[axis]) if axis < len(shape) else None


def _rows(value: Any) -> int:
    if (rows := extent(value, 0)) is None:
        raise breach(f"a {type(value).__name__} has no rows to share out", "use a Batch, an array or a list")
    return rows
