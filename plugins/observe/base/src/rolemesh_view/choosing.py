"""The rows that pass a reader's filters, in the order that the reader wants. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import nlargest, nsmallest
from typing import NamedTuple

from rolemesh_facts.row_meaning import FAULTS, LONGEST
from rolemesh_view.entries import Entry

__all__ = ["Choice", "Shown", "choose"]

COUNTED = 1000
"""Number of rows with a text that a search counts at least; beyond it, a page says that there are more."""
REWARD, TOKENS = "reward", "tokens"
"""The orders by a row's reward, and by the number of its sampled tokens, whatever its columns are called."""


class Choice(NamedTuple):
    """The filters of a reader. `only` is "" or one of `FAULTS`; `sort` a column, or "-" and one: falling.

    `group`, `row` and `rank` choose a group, the number of a row, and the rank that kept it; None and "" stand for all.
    """

    op: str = ""
    step: int | None = None
    find: str = ""
    only: str = ""
    sort: str = ""
    first: int = 0
    size: int = 20
    group: str | None = None
    row: int | None = None
    rank: str = ""


class Shown(NamedTuple):
    """A page of rows, and the rows that pass the filters: all, or with `more` the first ones in the wanted order."""

    rows: Sequence[Entry]
    passing: Sequence[Entry]
    more: bool = False


def choose(
    rows: Sequence[Entry], choice: Choice, find: Callable[[Sequence[Entry], str, int], tuple[Sequence[Entry], bool]]
) -> Shown:
    """Return those of `rows` that pass, in the wanted order: as they are, the newest first, or by the column of `sort`.

    `find` returns the first rows that have a text in a column, up to a number, and whether there are more.
    """
    passing = [row for row in rows if _passes(row, choice)] if _filters(choice) else rows
    last, down = choice.first + choice.size, choice.sort.startswith("-")
    pick, missing = (nlargest, -math.inf) if down else (nsmallest, math.inf)

    def by(row: Entry) -> float:
        return _size(_measure(row, choice.sort), missing)

    if choice.find:
        ordered = sorted(passing, key=by, reverse=down) if choice.sort else passing
        found, more = find(ordered, choice.find, max(COUNTED, last))
        return Shown(found[choice.first : last], found, more)
    found = pick(last, passing, key=by) if choice.sort else passing[:last]  # the newest is first among equals
    return Shown(found[choice.first :], passing)


def _measure(row: Entry, sort: str) -> float | None:
    name = sort.removeprefix("-")
    said = {"ratio": row.ratio, REWARD: row.said.reward, TOKENS: row.said.tokens}
    return said[name] if name in said else row.numbers.get(name)


def _filters(choice: Choice) -> bool:
    return choice._replace(find="", sort="", first=0, size=0) != Choice(size=0)


def _passes(row: Entry, choice: Choice) -> bool:
    if choice.op and row.op != choice.op:
        return False
    if choice.step is not None and row.step != choice.step:
        return False
    if choice.row is not None and row.row != choice.row:
        return False
    if choice.group is not None and str(row.said.group) != choice.group[: LONGEST + 1]:
        return False
    if choice.only in FAULTS and not FAULTS[choice.only](row.said):
        return False
    return choice.rank in ("", str(row.ref))


def _size(value: float | None, missing: float) -> float:
    try:
        found = math.nan if value is None else float(value)
    except OverflowError:
        return missing
    return missing if math.isnan(found) else found
