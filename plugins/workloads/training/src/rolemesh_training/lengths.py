"""Drop, cut or refuse rows that are too long for the model or have no tokens. Uses numpy only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rolemesh.api.batch import Batch, Ragged
from rolemesh.errors import RolemeshError
from rolemesh_training.sampling import row_name

__all__ = ["Fitted", "TokenColumn", "fitted", "taken"]

TokenColumn = Literal["input_ids", "completion_ids", "chosen_ids"]
"""The column that has the tokens of a row: `input_ids`, a prompt with its completion, or a prompt with a pair of
completions."""


class Fitted(NamedTuple):
    """The rows that the model can take, and the dropped or cut rows of the batch before."""

    batch: Batch
    dropped: Mapping[int, str]
    """Row of the batch before → its fault."""
    truncated: Mapping[int, str]


class _Tokens(NamedTuple):
    """Lengths of the rows of one token column. Each array has shape (rows,)."""

    lengths: NDArray[np.int64]
    """Number of tokens, without padding."""
    empty: NDArray[np.bool_]
    cut: TokenColumn | None
    """The column whose end can be cut; None if none can."""
    before: NDArray[np.int64]
    """Number of tokens before those of `cut`, which are the prompt's."""
    start: NDArray[np.int64]
    """Number of entries of `cut` before its first token, which are padding."""


def fitted(
    batch: Batch, limit: int | None, how: Literal["drop", "truncate", "fail"], tokens: TokenColumn | None = None
) -> Fitted:
    """Return `batch` without rows of more than `limit` tokens (None: there is no limit) and without empty rows.

    `tokens` names the column that counts. None: each token column of the batch counts, and a batch without any stays as
    it is. The prompt counts together with the completion; of a pair the longer completion counts. Padding, where
    `attention_mask` is 0, does not count.

    `truncate` cuts the end of `input_ids` or `completion_ids`, and of the columns with an entry for each of their
    tokens. It drops a row whose prompt fills `limit`, and a pair of `dpo`, because its reference covers the whole pair.
    A row with an empty completion stays. If `how` is fail, raises `RolemeshError` with the first such row.
    """
    most = np.iinfo(np.int64).max if limit is None else limit
    columns = [*_token_columns(batch, tokens)]
    faults: dict[int, str] = {}
    kept = np.ones(batch.rows, np.bool_)
    for each in columns:
        for row in np.flatnonzero(each.empty | (each.lengths > most)):
            long = f"has {each.lengths[row]} tokens of {limit} at most"
            faults.setdefault(int(row), "is empty, or has an empty prompt" if each.empty[row] else long)
        cuttable = (each.before < most) if how == "truncate" and each.cut else False
        kept &= ~each.empty & ((each.lengths <= most) | cuttable)
    if not faults:
        return Fitted(batch, {}, {})
    if how == "fail":
        row = min(faults)
        raise RolemeshError(
            f"{row_name(batch, row)} {faults[row]}",
            remedy="leave it out of the data, raise max_length, or set too_long to drop or truncate",
        )
    rows = np.flatnonzero(kept)
    truncated = {row: fault for row, fault in faults.items() if kept[row]}
    dropped = {row: fault for row, fault in faults.items() if not kept[row]}
    found = dict(taken(batch, rows))
    for each in columns:
        if each.cut and (each.lengths[rows] > most).any():
            own = _each(found[each.cut])
            room = each.start[rows] + most - each.before[rows]
            ends = np.where(each.lengths[rows] > most, room, own)
            found |= {name: _cut(column, ends) for name, column in found.items() if _follows(name, column, each, found)}
    return Fitted(Batch(found, rows=len(rows)), dropped, truncated)


def taken(batch: Batch, rows: NDArray[np.int64]) -> Batch:
    """Return the rows with these numbers."""
    return Batch({name: _pick(column, rows) for name, column in batch.items()}, rows=len(rows))


def _token_columns(batch: Batch, tokens: TokenColumn | None) -> Iterator[_Tokens]:
    """Yield the lengths by the column `tokens`; by every token column of the batch if it is None."""
    none = np.zeros(batch.rows, np.int64)
    if tokens in ("input_ids", None) and "input_ids" in batch:
        lengths, start = _each(batch["input_ids"]), none
        if "attention_mask" in batch and (lengths == _each(batch["attention_mask"])).all():
            seen = [np.flatnonzero(np.asarray(row)) for row in batch["attention_mask"]]
            lengths = np.array([row[-1] + 1 - row[0] if len(row) else 0 for row in seen], np.int64)
            start = np.array([row[0] if len(row) else 0 for row in seen], np.int64)
        yield _Tokens(lengths, lengths == 0, "input_ids", none, start)
    if "prompt_ids" not in batch:
        return
    head = _each(batch["prompt_ids"])
    if tokens in ("completion_ids", None) and "completion_ids" in batch:
        yield _Tokens(head + _each(batch["completion_ids"]), head == 0, "completion_ids", head, none)
    if tokens in ("chosen_ids", None) and {"chosen_ids", "rejected_ids"} <= batch.keys():
        longer = np.maximum(_each(batch["chosen_ids"]), _each(batch["rejected_ids"]))
        yield _Tokens(head + longer, head == 0, None, head, none)


def _follows(name: str, column: Any, tokens: _Tokens, columns: Mapping[str, Any]) -> bool:
    """Return whether the column has an entry for each token of the column that is cut."""
    if name == tokens.cut:
        return True
    if name == "prompt_ids" or not _has_entries(column):
        return False
    return np.array_equal(_each(column), _each(columns[tokens.cut or ""]))


def _has_entries(column: Any) -> bool:
    """Return whether each row of the column is a sequence of numbers."""
    if isinstance(column, (list, tuple)):
        return all(isinstance(row, (list, tuple, np.ndarray)) and all(map(np.isscalar, row[:1])) for row in column)
    return isinstance(column, Ragged) or np.ndim(column) > 1


def _cut(column: Any, ends: NDArray[np.int64]) -> Any:
    """Return the first entries of each row, as many as `ends` says."""
    rows = [row[:end] for row, end in zip(column, ends, strict=True)]
    if isinstance(column, (list, tuple)):
        return rows
    return Ragged.from_rows(rows, column.values.dtype if isinstance(column, Ragged) else np.asarray(column).dtype)


def _each(column: Any) -> NDArray[np.int64]:
    if isinstance(column, Ragged):
        return np.diff(column.offsets)
    return np.fromiter((len(row) for row in column), dtype=np.int64, count=len(column))


def _pick(column: Any, rows: NDArray[np.int64]) -> Any:
    if isinstance(column, Ragged):  # the slice keeps the shape of the entries
        return Ragged.from_rows([column[row] for row in rows], column.values.dtype) if len(rows) else column[:0]
    return [column[row] for row in rows] if isinstance(column, (list, tuple)) else column[rows]
