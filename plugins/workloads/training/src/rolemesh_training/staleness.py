"""The age of rows and tokens in versions of the weights. Uses numpy only.

A batch has `weight_versions` (ragged int64: the version whose weights sampled each completion token, -1 for tokens that
no model sampled), or `weight_version` (int64, (rows,)). A token's lag is the trainer's version minus that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rolemesh.api.batch import Batch
from rolemesh.errors import RolemeshError
from rolemesh_training.sampling import row_name

__all__ = ["LAG", "MOST", "histogram", "lags", "stale_rows"]

MOST = 8
"""The last bin of the histogram, for this lag and all larger ones."""
LAG = "lag_"
"""First part of the names of the histogram's bins: ``lag_0``, ``lag_1``, …"""


def lags(batch: Batch, version: int) -> list[NDArray[np.int64]] | None:
    """Return for each row the lags of its sampled tokens, or the one lag of the row; None without a column of versions.

    Raises `RolemeshError` for a row in which `weight_versions` and the completion differ in length.
    """
    if "weight_versions" in batch:
        return [version - row[row >= 0] for row in _versions(batch)]
    if "weight_version" in batch:
        return [np.array([version - row]) for row in np.asarray(batch["weight_version"], dtype=np.int64)]
    return None


def _versions(batch: Batch) -> list[NDArray[np.int64]]:
    found = [np.asarray(row, dtype=np.int64) for row in batch["weight_versions"]]
    for row, (versions, ids) in enumerate(zip(found, batch["completion_ids"], strict=True)):
        if len(versions) != len(ids):
            raise RolemeshError(
                f"'weight_versions' has {len(versions)} entries for {len(ids)} completion tokens",
                where=row_name(batch, row),
                remedy="give one entry for each token of 'completion_ids': the version of the weights that sampled it, "
                "or -1",
            )
    return found


def stale_rows(found: Sequence[NDArray[np.int64]], most: int) -> NDArray[np.bool_]:
    """Return which rows have a token whose lag is above `most`: (rows,). A row without sampled tokens has none."""
    return np.array([bool((row > most).any()) for row in found], dtype=np.bool_)


def histogram(found: Sequence[NDArray[np.int64]]) -> dict[str, int]:
    """Return the number of lags in each bin that has any: ``lag_0`` to ``lag_7``, and ``lag_8`` for all from 8 on.

    A lag below 0, of weights that are newer than the trainer's, counts in ``lag_0``.
    """
    flat = np.concatenate([np.zeros(0, np.int64), *found])
    numbers, counts = np.unique(flat.clip(0, MOST), return_counts=True)
    return {f"{LAG}{number}": int(count) for number, count in zip(numbers, counts, strict=True)}
