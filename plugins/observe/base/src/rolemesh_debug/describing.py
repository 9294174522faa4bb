"""Values in words: type, shape, dtype, and the range of whole numbers, such as versions of weights. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rolemesh import Batch
from rolemesh.api.batch import Ragged, Shard

__all__ = ["described"]

MOST_ELEMENTS = 10_000_000
"""Elements of an array above which its range and its NaN are not counted."""
MOST_ITEMS = 8
"""Items of a mapping that are described; for a `Batch`, all columns up to `MOST_COLUMNS`."""
MOST_COLUMNS = 40
MOST_TEXT = 60
DEPTH = 3


def described(value: Any, depth: int = DEPTH) -> str:
    """Return a value in words: ``Batch of 8 rows (ids: ragged int64, 90 in 8 rows, 3…511; text: list of 8 str)``.

    Never raises: a value that cannot be looked at, such as a tensor of a broken GPU, is described by its type.
    """
    try:
        return _described(value, depth)
    except Exception as error:
        return f"{type(value).__name__} (cannot be read: {type(error).__name__})"


def _described(value: Any, depth: int) -> str:
    if isinstance(value, Batch):
        return f"Batch of {value.rows} rows ({_pairs(value, depth, MOST_COLUMNS)})"
    if isinstance(value, Ragged):
        content = _content(value.values, rows=False)
        return f"ragged {_dtype(value.values)}, {len(value.values)} in {len(value)} rows{content}"
    if isinstance(value, Shard):
        return f"shard of {list(value.shape)} at {list(value.offsets)}: {described(value.data, depth)}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        where = f" on {value.device}" if hasattr(value, "device") and str(value.device) != "cpu" else ""
        return f"{_dtype(value)} {list(value.shape)}{where}{_content(value)}"
    if isinstance(value, Mapping):
        return f"mapping of {len(value)} ({_pairs(value, depth, MOST_ITEMS)})" if depth else f"mapping of {len(value)}"
    if isinstance(value, list | tuple):
        kinds = dict.fromkeys(type(item).__name__ for item in value[:1000])
        return f"{type(value).__name__} of {len(value)} {' or '.join(list(kinds)[:3])}".rstrip()
    if value is None or isinstance(value, bool | int | float):
        return repr(value)[:MOST_TEXT]
    if isinstance(value, str | bytes):
        more = "…" if len(value) > MOST_TEXT else ""
        return f"{value[:MOST_TEXT]!r}{more}"
    if hasattr(value, "__next__"):
        return "stream"
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _pairs(value: Mapping[Any, Any], depth: int, most: int) -> str:
    shown = [f"{key}: {described(item, depth - 1)}" for key, item in list(value.items())[:most]]
    return "; ".join([*shown, *(["…"] if len(value) > most else [])])


def _dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def _content(value: Any, *, rows: bool = True) -> str:
    """Return the range of whole numbers, and the number of NaN and infinite values of others; "" if unknown.

    With `rows` it has the first row with such a value.
    """
    if hasattr(value, "detach"):
        if value.device.type != "cpu":
            return ""
        value = value.detach()
        value = (value.float() if value.is_floating_point() else value).numpy()
    if not isinstance(value, np.ndarray) or not 0 < value.size <= MOST_ELEMENTS:
        return ""
    if value.dtype.kind in "iu":
        low, high = value.min(), value.max()
        return f", all {low}" if low == high else f", {low}…{high}"
    if value.dtype.kind == "f":
        odd = (("NaN", np.isnan(value)), ("infinite", np.isinf(value)))
        return "".join(f", {int(at.sum())} {name}{_first(at) if rows else ''}" for name, at in odd if at.any())
    return ""


def _first(at: np.ndarray[Any, Any]) -> str:
    return f" (first in row {np.argwhere(at)[0][0]})" if at.ndim and len(at) > 1 else ""
