"""The completions of some rows of a batch: their tokens, which of them were sampled, and columns with a value for each
of those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rolemesh.api.batch import Batch
from rolemesh.errors import RolemeshError
from rolemesh_training.columns import every_finite, token_ids
from rolemesh_training.sampling import row_name

__all__ = ["MASK", "Completions", "sampled_tokens"]

MASK = "completion_mask"
"""Column with a number for each completion token (ragged): 1 if the model sampled it; 0 if an environment, a tool or
the chat template wrote it. Tokens with 0 are context. Without the column every completion token was sampled."""


def sampled_tokens(batch: Batch, rows: Sequence[int] | NDArray[np.int64]) -> list[NDArray[np.bool_]] | None:
    """Return for each of `rows` which of its completion tokens were sampled; None without the column `MASK`.

    Raises `RolemeshError` for a row in which the column's length differs from the completion's, or in which it has
    other numbers than 0 and 1.
    """
    if MASK not in batch:
        return None
    found = []
    for row in rows:
        mask, tokens = np.asarray(batch[MASK][row]), len(batch["completion_ids"][row])
        remedy = f"give one entry of {MASK!r} for each token of 'completion_ids': 1 if it was sampled, else 0"
        if len(mask) != tokens:
            what = f"{MASK!r} has {len(mask)} entries for {tokens} completion tokens"
            raise RolemeshError(what, where=row_name(batch, int(row)), remedy=remedy)
        if ((mask != 0) & (mask != 1)).any():
            raise RolemeshError(
                f"{MASK!r} has other entries than 0 and 1", where=row_name(batch, int(row)), remedy=remedy
            )
        found.append(mask.astype(np.bool_))
    return found


@dataclass(frozen=True)
class Completions:
    """The completions of `rows`."""

    batch: Batch
    rows: NDArray[np.int64]
    """(rows,): numbers of the rows in `batch`."""
    ids: Sequence[NDArray[np.int64]]
    """The completion's tokens of each row."""
    sampled: Sequence[NDArray[np.bool_]] | None
    """Which of these tokens were sampled, for each row; None: all of them."""

    @classmethod
    def of(cls, batch: Batch, rows: NDArray[np.int64] | None = None) -> Completions:
        """Return the completions of `rows`; of all rows if None."""
        rows = np.arange(batch.rows) if rows is None else rows
        ids = [token_ids(batch, "completion_ids", int(row)) for row in rows]
        return cls(batch, rows, ids, sampled_tokens(batch, rows))

    @property
    def prompts(self) -> list[NDArray[np.int64]]:
        """Return the prompt of each row."""
        return [token_ids(self.batch, "prompt_ids", int(row)) for row in self.rows]

    @property
    def lengths(self) -> list[int]:
        """Return the number of sampled tokens of each row."""
        return [len(ids) for ids in self.ids] if self.sampled is None else [int(mask.sum()) for mask in self.sampled]

    def column(self, name: str, device: torch.device) -> torch.Tensor:
        """Return a column with a number for each completion token, of the sampled tokens only: float32, flat, row by
        row.

        Entries of the shape (1,) will do. Raises `RolemeshError` for a row with another shape than its completion's,
        and for a number that is not finite.
        """
        every_finite(self.batch, name)
        values = [np.asarray(self.batch[name][row], dtype=np.float32) for row in self.rows]
        for row, value, ids in zip(self.rows, values, self.ids, strict=True):
            if value.shape not in ((len(ids),), (len(ids), 1)):
                raise RolemeshError(
                    f"{name!r} has {value.size} entries for {len(ids)} completion tokens",
                    where=row_name(self.batch, int(row)),
                    remedy=f"give one number of {name!r} for each token of 'completion_ids'",
                )
        values = [value.reshape(-1) for value in values]
        if self.sampled is not None:
            values = [value[mask] for value, mask in zip(values, self.sampled, strict=True)]
        return torch.from_numpy(np.concatenate(values)).to(device)

    def scattered(self, values: torch.Tensor) -> torch.Tensor:
        """Return `values` of the sampled tokens as values of all completion tokens, with 0 for the others."""
        if self.sampled is None:
            return values
        places = torch.from_numpy(np.flatnonzero(np.concatenate(self.sampled)))
        found = values.new_zeros(sum(len(ids) for ids in self.ids))
        found[places.to(values.device)] = values
        return found
