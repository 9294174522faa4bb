"""The loss of a classifier, as transformers' own: `ForSequenceClassificationLoss`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from rolemesh.api.batch import Batch, Ragged
from rolemesh.errors import RolemeshError
from rolemesh_training.columns import IGNORED, check_columns, every_finite, text_rows
from rolemesh_training.contract import LossContext, LossOutput
from rolemesh_training.packing import row_scores
from rolemesh_training.sampling import row_name

__all__ = ["classification"]

_LABELS = ("label", "labels", "label_ids")


def classification(model: torch.nn.Module, batch: Batch, ctx: LossContext) -> LossOutput:
    """The error of a row's label or labels (``task: classification``), averaged over rows.

    Columns: `input_ids` (ragged int; padded if there is an `attention_mask`), and one of `label`, `labels` and
    `label_ids`. The config's ``problem_type`` says which error, and without it the number and dtype of the labels do:

    - ``regression`` (a model of one label): the squared error of numbers, (rows,) or (rows, labels).
    - ``single_label_classification`` (integers): the cross-entropy, (rows,). A row with the label -100 does not count.
    - ``multi_label_classification`` (numbers for several labels): the binary cross-entropy, (rows, labels).

    A trailing dimension of 1 makes no difference. Raises `RolemeshError` for labels of another shape or dtype.
    """
    check_columns(batch, "classification")
    labels, name = _labels(batch)
    scores = row_scores(model, text_rows(batch), ctx.device)
    number = scores.shape[-1]
    problem = getattr(model.config, "problem_type", None) or _problem(labels, number)
    if problem == "single_label_classification":
        return _single(scores, labels, batch, name)
    if labels.size != scores.numel():
        raise _misfit(labels, batch, name, f"{problem} of {number} labels needs ({batch.rows}, {number})")
    wanted = torch.from_numpy(labels.astype(np.float32).reshape(tuple(scores.shape))).to(ctx.device)
    if problem == "regression":
        each = (scores - wanted).square()
    else:
        each = binary_cross_entropy_with_logits(scores, wanted, reduction="none")
    return LossOutput(each.mean(-1).sum(), float(batch.rows))


def _labels(batch: Batch) -> tuple[NDArray[Any], str]:
    """Return the labels as an array, and the name of their column."""
    names = [name for name in _LABELS if name in batch]
    if len(names) != 1:
        raise RolemeshError(
            f"the rows have {' and '.join(names) or 'no column with labels'}",
            remedy="give one of the columns label, labels and label_ids",
        )
    every_finite(batch, names[0])
    column = batch[names[0]]
    if not isinstance(column, Ragged):
        return np.asarray(column), names[0]
    if len({*np.diff(column.offsets)}) > 1:
        raise _misfit(column.values, batch, names[0], "every row has the same number of labels")
    return column.values.reshape(batch.rows, -1), names[0]


def _problem(labels: NDArray[Any], number: int) -> str:
    if number == 1:
        return "regression"
    return "single_label_classification" if labels.dtype.kind in "iu" else "multi_label_classification"


def _single(scores: torch.Tensor, labels: NDArray[Any], batch: Batch, name: str) -> LossOutput:
    number = scores.shape[-1]
    if labels.size != batch.rows or labels.dtype.kind not in "iu":
        raise _misfit(labels, batch, name, f"one integer for each row, from 0 to {number - 1}, says its class")
    flat = labels.reshape(-1).astype(np.int64)
    for row in np.flatnonzero((flat != IGNORED) & ((flat < 0) | (flat >= number)))[:1]:
        raise RolemeshError(
            f"the column {name!r} has the label {flat[row]} for a model of {number} labels",
            where=row_name(batch, int(row)),
            remedy=f"give a label from 0 to {number - 1}, or {IGNORED} for a row that does not count",
        )
    wanted = torch.from_numpy(flat).to(scores.device)
    counted = float((flat != IGNORED).sum())
    right = (scores.detach().argmax(-1) == wanted).float().sum()
    total = cross_entropy(scores, wanted, reduction="sum", ignore_index=IGNORED)
    return LossOutput(total, counted, {"accuracy": (right, counted)})


def _misfit(labels: NDArray[Any], batch: Batch, name: str, wanted: str) -> RolemeshError:
    return RolemeshError(
        f"the column {name!r} has labels for classification of {labels.dtype} in the shape {labels.shape}; {wanted}",
        remedy="give such labels, or set problem_type in the model's config.json",
    )
