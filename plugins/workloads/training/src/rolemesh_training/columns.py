"""Read and check the columns of a batch for a loss: shapes, lengths, finite numbers, and those of collators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolemesh.api.batch import Batch, Ragged
from rolemesh.errors import RolemeshError
from rolemesh_training.foreign import READS, REMEDIES
from rolemesh_training.sampling import row_name

__all__ = [
    "IGNORED",
    "check_columns",
    "every_finite",
    "known_ids",
    "row_numbers",
    "target_rows",
    "text_rows",
    "token_ids",
]
__all__ += ["untaught_rows"]

IGNORED = -100
"""The label of a token that does not count."""
_MASKS = ("loss_mask", "completion_mask", "assistant_masks")
"""Columns with a number for each token, 0 for those that are no targets."""
_IDS = ("input_ids", "prompt_ids", "completion_ids", "chosen_ids", "rejected_ids", "labels", "teacher_ids")
"""Columns with ids of tokens."""


def check_columns(batch: Batch, step: str) -> None:
    """Raise `RolemeshError` for a column of a collator that `step`, a loss or an operator, would not read."""
    for name in batch:
        if name in REMEDIES and name not in READS[step]:
            raise RolemeshError(f"the rows have a column {name!r}, which {step} does not read", remedy=REMEDIES[name])


def every_finite(batch: Batch, *names: str) -> None:
    """Raise `RolemeshError` with the first row in which a column has NaN, an infinity or None."""
    for name in names:
        column = batch[name]
        flat = column.values if isinstance(column, Ragged) else column
        good = np.isfinite(np.asarray(flat, dtype=np.float64))
        if good.all():
            continue
        place = int(np.argwhere(~good)[0][0])
        row = int(np.searchsorted(column.offsets, place, side="right")) - 1 if isinstance(column, Ragged) else place
        raise RolemeshError(
            f"the column {name!r} is {np.asarray(flat, dtype=np.float64)[place]}, which is no finite number",
            where=row_name(batch, row),
            remedy="leave the row out before it is trained on, or look for what has computed it",
        )


def row_numbers(batch: Batch, name: str) -> NDArray[np.float32]:
    """Return a column with one finite number for each row: float32, (rows,). The shape (rows, 1) will do."""
    every_finite(batch, name)
    column = batch[name]
    found = np.asarray([*column] if isinstance(column, Ragged) else column, dtype=np.float32)
    if found.shape not in ((batch.rows,), (batch.rows, 1)):
        raise RolemeshError(
            f"the column {name!r} has the shape {found.shape} for {batch.rows} rows",
            remedy=f"give one number of {name!r} for each row",
        )
    return found.reshape(batch.rows)


def token_ids(batch: Batch, name: str, row: int) -> NDArray[np.int64]:
    """Return the token ids of a row: int64, (tokens,). Raises `RolemeshError` for another shape, and for values that
    are no ids."""
    found = np.asarray(batch[name][row])
    if found.ndim != 1 or (found.size and (found.dtype.kind not in "iu" or found.min() < 0)):
        raise RolemeshError(
            f"the column {name!r} has other values than token ids ({found.dtype}, shape {found.shape})",
            where=row_name(batch, row),
            remedy=f"give {name!r} as one sequence of integers for each row, 0 or more",
        )
    return found.astype(np.int64)


def known_ids(batch: Batch, vocabulary: int | None) -> None:
    """Raise `RolemeshError` with the first row that has an id of `vocabulary` or more. None: the model has no
    vocabulary."""
    for name in _IDS if vocabulary is not None else ():
        for row, ids in enumerate(batch.get(name, ())):
            found = np.asarray(ids)
            if found.size and found.dtype.kind in "iu" and found.max() >= vocabulary:
                raise RolemeshError(
                    f"the column {name!r} has the token {found.max()}, and the model knows {vocabulary} tokens",
                    where=row_name(batch, row),
                    remedy="make the rows with the tokenizer of this model; a teacher must have the same vocabulary",
                )


def text_rows(batch: Batch) -> list[NDArray[np.int64]]:
    """Return the tokens of each row (int64), without padding."""
    rows = [token_ids(batch, "input_ids", row) for row in range(batch.rows)]
    return rows if "attention_mask" not in batch else [row[part] for row, part in zip(rows, _parts(batch), strict=True)]


def target_rows(batch: Batch) -> list[NDArray[np.int64]]:
    """Return the target token of each position of each row (int64), `IGNORED` for positions that do not count.

    Targets are `labels`, or the tokens that each mask of the batch counts.
    """
    masks = [name for name in _MASKS if name in batch]
    if "labels" in batch and masks:
        raise RolemeshError(f"the rows have 'labels' and {masks[0]!r}", remedy="give one of them")
    found = [np.asarray(row, dtype=np.int64) for row in batch["input_ids"]]
    if "labels" in batch:
        found = [np.asarray(row, dtype=np.int64) for row in _of_length(batch, "labels", found)]
    for name in masks:
        pairs = zip(found, _of_length(batch, name, found), strict=True)
        found = [np.where(np.asarray(mask) != 0, row, IGNORED) for row, mask in pairs]
    parts = _parts(batch) if "attention_mask" in batch else [slice(None)] * batch.rows
    return [row[part] for row, part in zip(found, parts, strict=True)]


def untaught_rows(batch: Batch) -> list[int]:
    """Return the rows whose labels or masks count no token after the first, which no other token predicts."""
    if "labels" not in batch and not any(name in batch for name in _MASKS):
        return []
    return [row for row, targets in enumerate(target_rows(batch)) if np.all(targets[1:] == IGNORED)]


def _parts(batch: Batch) -> Iterator[slice]:
    """Yield the range of tokens of each row that are not padding."""
    masks = _of_length(batch, "attention_mask", batch["input_ids"])
    for row, mask in enumerate(masks):
        seen = np.flatnonzero(np.asarray(mask))
        part = slice(int(seen[0]), int(seen[-1]) + 1) if len(seen) else slice(0, 0)
        if part.stop - part.start != len(seen):
            raise RolemeshError(
                "'attention_mask' leaves out tokens between others",
                where=row_name(batch, row),
                remedy="leave these tokens out of the row; only padding at its ends can be masked",
            )
        yield part


def _of_length(batch: Batch, name: str, rows: Sequence[Any]) -> Sequence[Any]:
    """Return a per-token column. Raises `RolemeshError` for a row in which its length differs from the number of
    tokens."""
    column = batch[name]
    for row, (value, ids) in enumerate(zip(column, rows, strict=True)):
        if np.ndim(value) != 1 or len(value) != len(ids):
            raise RolemeshError(
                f"the column {name!r} has {np.size(value)} entries for {len(ids)} tokens",
                where=row_name(batch, row),
                remedy=f"give one entry of {name!r} for each token of 'input_ids'",
            )
        good = _are_targets if name == "labels" else _are_flags
        if not good(np.asarray(value)):
            known = f"token ids and {IGNORED}" if name == "labels" else "0 and 1"
            raise RolemeshError(
                f"the column {name!r} has other entries than {known}",
                where=row_name(batch, row),
                remedy=f"give {IGNORED if name == 'labels' else 0} for a token that does not count",
            )
    found: Sequence[Any] = column
    return found


def _are_flags(entries: NDArray[Any]) -> bool:
    return bool(np.all((entries == 0) | (entries == 1)))


def _are_targets(entries: NDArray[Any]) -> bool:
    if entries.dtype.kind not in "iuf":
        return False
    in_range = (entries >= 0) & (entries < 1 << 31)
    return bool(np.all((in_range | (entries == IGNORED)) & (entries == np.floor(entries))))
