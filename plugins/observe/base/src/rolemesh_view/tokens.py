"""The tokens of a kept row with their colours. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from rolemesh_facts.row_meaning import MASKS

__all__ = ["DIFFERENCE", "Token", "colourings", "is_number", "is_numbers", "numbers_of", "tokens"]

MOST_TOKENS = 4000
SHADES = 8
"""Number of shades of a colour, without the neutral one."""
DIFFERENCE = " − "


class Token(NamedTuple):
    """A token's text, its value as text, and its shade from -8 (lowest) over 0 to 8 (highest).

    `own`: the model sampled it. Others come from the environment or a prompt, so they have no shade.
    """

    text: str
    value: str
    shade: int
    own: bool = True


def colourings(columns: Mapping[str, Any]) -> list[str]:
    """Return by what the tokens of a row can be coloured: lists of numbers, and differences of ``logprobs``."""
    lists = [name for name, value in columns.items() if is_numbers(value)]
    logs = [name for name in lists if "logp" in name.lower()]
    pairs = [
        f"{one}{DIFFERENCE}{other}" for at, one in enumerate(logs) for other in logs[at + 1 :]
        if len(columns[one]) == len(columns[other])
    ]  # fmt: skip
    return pairs + logs + [name for name in lists if name not in logs and not name.lower().endswith("ids")]


def tokens(columns: Mapping[str, Any], by: str, text_of: Callable[[int], str] | None = None) -> list[Token]:
    """Return the tokens of a row, coloured by `by`, one of `colourings`. Empty if the row has no such column.

    Their texts are those of a column of tokens, or else the ids of such a column, with the texts that `text_of` gives.
    """
    values = _values(columns, by)
    if not values:
        return []
    texts = next(_texts(columns, len(values)), values)
    if text_of is not None and texts is not values:
        texts = [text_of(each) if isinstance(each, int) else each for each in texts]
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    largest = max(abs(low), abs(high)) or 1.0
    found = []
    sampled = _sampled(columns, len(values))
    for text, value, own in list(zip(texts, values, sampled, strict=True))[:MOST_TOKENS]:
        if not own:
            shade = 0
        elif not math.isfinite(value):
            shade = SHADES
        elif DIFFERENCE in by or low < 0:
            shade = round(SHADES * value / largest)
        else:
            shade = round(SHADES * (value - low) / (high - low)) if high > low else 0
        found.append(Token(f"{text:.3g}" if isinstance(text, float) else str(text), f"{value:.4g}", shade, own))
    return found


def _sampled(columns: Mapping[str, Any], length: int) -> Sequence[bool]:
    """Return for each token whether the model sampled it: what a mask of this length says; else all."""
    masks = (columns.get(name) for name in MASKS)
    mask = next((each for each in masks if isinstance(each, list) and len(each) == length), [1] * length)
    return [bool(each) for each in mask]


def _texts(columns: Mapping[str, Any], length: int) -> Iterator[Sequence[Any]]:
    """Yield the columns that may hold the tokens: texts first, then ids."""
    for part in ("token", "ids"):
        for name, value in columns.items():
            if isinstance(value, list) and len(value) == length and part in name.lower():
                yield value


def _values(columns: Mapping[str, Any], by: str) -> Sequence[float]:
    one, difference, other = by.partition(DIFFERENCE)
    first = columns.get(one)
    if not is_numbers(first):
        return []
    mine = [_float(value) for value in first]
    if not difference:
        return mine
    second = columns.get(other)
    if not is_numbers(second) or len(second) != len(mine):
        return []
    return [left - _float(right) for left, right in zip(mine, second, strict=True)]


def numbers_of(values: Sequence[Any]) -> list[float]:
    """Return the values of a list in a row as numbers; NaN for what is none."""
    return [_float(value) for value in values]


def is_number(value: Any) -> bool:
    """Return whether a value of a row is a number."""
    return isinstance(value, int | float)


def is_numbers(value: Any) -> TypeGuard[list[Any]]:
    """Return whether a value of a row is a list of numbers, as of tokens; NaN and infinity are texts there."""
    return isinstance(value, list) and bool(value) and all(is_number(each) or each in _NAMES for each in value)


_NAMES = ("nan", "inf", "-inf")


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
