"""Rows that are too long to train on, or have nothing to begin with: left out, cut, or refused. numpy only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rolemesh.api.batch import Batch, Ragged
from rolemesh.errors import RolemeshError
from rolemesh_training.sampling import row_name

__all__ = ["Fitted", "fitted"]


class Fitted(NamedTuple):
    """The rows that can be trained on, and those of the batch before that had to go, or were cut."""

    batch: Batch
    dropped: Mapping[int, str]
    """Row of the batch before → what is wrong with it."""
    truncated: Mapping[int, str]


def fitted(batch: Batch, limit: int | None, how: Literal["drop", "truncate", "fail"]) -> Fitted:
    """`batch` without rows of more than `limit` tokens (None: there is no limit), and without those of none.

    A row is its `input_ids`, or its prompt and the longest of its completions. `truncate` cuts the end of `input_ids`
    or `completion_ids`, and of the columns with an entry for each of their tokens. It drops a row whose prompt fills
    `limit`, and a pair of `dpo`, because its reference is of the whole. A row with an empty completion stays.
    Raises `RolemeshError` with the first such row if `how` is fail.
    """
    found = _lengths(batch)
    if found is None:
        return Fitted(batch, {}, {})
    lengths, head, cut = found
    empty = lengths == 0 if head is None else head == 0
    most = np.iinfo(np.int64).max if limit is None else limit
    bad = np.flatnonzero(empty | (lengths > most))
    if not len(bad):
        return Fitted(batch, {}, {})
    faults = {
        int(row): "is empty, or has an empty prompt" if empty[row] else f"has {lengths[row]} tokens of {limit} at most"
        for row in bad
    }
    if how == "fail":
        raise RolemeshError(
            f"{row_name(batch, int(bad[0]))} {faults[int(bad[0])]}",
            remedy="leave it out of the data, raise max_length, or set too_long to drop or truncate",
        )
    room = most - (0 if head is None else head)
    cuttable = cut is not None and how == "truncate"
    kept = np.flatnonzero(~empty & ((lengths <= most) | (np.full(len(lengths), cuttable) & (room > 0))))
    truncated = {int(row): faults[int(row)] for row in kept if lengths[row] > most}
    dropped = {row: fault for row, fault in faults.items() if row not in truncated}
    columns = {name: _pick(column, kept) for name, column in batch.items()}
    if truncated and cut is not None:
        own = _each(columns[cut])
        ends = np.minimum(own, np.broadcast_to(room, lengths.shape)[kept])
        columns |= {
            name: Ragged.from_rows([row[:end] for row, end in zip(column, ends, strict=True)], column.values.dtype)
            for name, column in columns.items()
            if name != "prompt_ids" and isinstance(column, Ragged) and np.array_equal(_each(column), own)
        }
    return Fitted(Batch(columns, rows=len(kept)), dropped, truncated)


def _lengths(batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64] | None, str | None] | None:
    """Tokens of each row, those of its prompt (None without one), and the column whose end can be cut."""
    if "input_ids" in batch:
        return _each(batch["input_ids"]), None, "input_ids"
    if "prompt_ids" not in batch:
        return None
    head = _each(batch["prompt_ids"])
    if "completion_ids" in batch:
        return head + _each(batch["completion_ids"]), head, "completion_ids"
    if "chosen_ids" in batch and "rejected_ids" in batch:
        return head + np.maximum(_each(batch["chosen_ids"]), _each(batch["rejected_ids"])), head, None
    return None


def _each(column: Any) -> NDArray[np.int64]:
    if isinstance(column, Ragged):
        return np.diff(column.offsets)
    return np.fromiter((len(row) for row in column), dtype=np.int64, count=len(column))


def _pick(column: Any, rows: NDArray[np.int64]) -> Any:
    if isinstance(column, Ragged):
        return Ragged.from_rows([column[row] for row in rows], column.values.dtype)
    return [column[row] for row in rows] if isinstance(column, (list, tuple)) else column[rows]
