"""Read and check the columns of a batch for a loss: lengths, finite numbers, and the columns of a Hugging Face
collator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolemesh.api.batch import Batch, Ragged
from rolemesh.errors import RolemeshError
from rolemesh_training.sampling import row_name

__all__ = ["IGNORED", "every_finite", "refuse", "target_rows", "text_rows"]

IGNORED = -100
"""The label of a token that does not count."""
_FOREIGN = ("position_ids", "token_type_ids")
"""Columns of a Hugging Face collator that would change what a model computes."""


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


def refuse(batch: Batch, *names: str) -> None:
    """Raise `RolemeshError` if the batch has one of the columns `names`, which the loss would not read."""
    for name in names:
        if name in batch:
            remedy = "leave the column out of the rows; a row has its own tokens only, and no padding"
            raise RolemeshError(f"the rows have a column {name!r}, which this loss does not read", remedy=remedy)


def text_rows(batch: Batch) -> list[NDArray[np.int64]]:
    """Return the tokens of each row (int64), without padding."""
    refuse(batch, *_FOREIGN)
    rows = [np.asarray(row, dtype=np.int64) for row in batch["input_ids"]]
    return rows if "attention_mask" not in batch else [row[part] for row, part in zip(rows, _parts(batch), strict=True)]


def target_rows(batch: Batch) -> list[NDArray[np.int64]]:
    """Return the target token of each position of each row (int64), `IGNORED` for positions that do not count."""
    if "labels" in batch and "loss_mask" in batch:
        raise RolemeshError("the rows have 'labels' and 'loss_mask'", remedy="give one of them")
    ids = [np.asarray(row, dtype=np.int64) for row in batch["input_ids"]]
    found = ids
    if "labels" in batch:
        found = [np.asarray(row, dtype=np.int64) for row in _of_length(batch, "labels", ids)]
    elif "loss_mask" in batch:
        masks = _of_length(batch, "loss_mask", ids)
        found = [np.where(np.asarray(mask) != 0, row, IGNORED) for row, mask in zip(ids, masks, strict=True)]
    parts = _parts(batch) if "attention_mask" in batch else [slice(None)] * batch.rows
    return [row[part] for row, part in zip(found, parts, strict=True)]


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
    found: Sequence[Any] = column
    return found
