"""A model of clicks on rows that servers hold, and how good predictions are. This module imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rolemesh_embeddings.client import EmbeddingClient

__all__ = ["DeepFM", "auc"]


class DeepFM(torch.nn.Module):
    """DeepFM (Guo et al., arXiv:1703.04247). A row of the table of each field is a weight and a vector of `dim`.

    The parameters of the deep part begin with numbers of `seed`; what is learned is in the table `net`.
    """

    def __init__(self, rows: EmbeddingClient, fields: Sequence[str], dim: int, hidden: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.deep = torch.nn.Sequential(
                torch.nn.Linear(len(fields) * dim, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 1)
            )
        rows.hold("net", self.deep)
        self._fields, self._rows = tuple(fields), [rows]  # in a list, so that it is no part of this module

    def forward(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return the logits of clicks (rows,). `batch` has the keys of each field."""
        found = torch.stack([self._rows[0](field, batch[field]) for field in self._fields], dim=1)
        first, vectors = found[..., 0].sum(1), found[..., 1:]
        pairs = (vectors.sum(1) ** 2 - (vectors**2).sum(1)).sum(1) / 2
        logits: torch.Tensor = first + pairs + self.deep(vectors.flatten(1)).squeeze(1)
        return logits


def auc(score: NDArray[Any], clicked: NDArray[Any]) -> float | None:
    """Return the area under the ROC curve (Mann and Whitney 1947), with ties counted half; None without both
    classes."""
    positive = int(clicked.sum())
    if not 0 < positive < len(clicked):
        return None
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    total = ranks[clicked > 0].sum() - positive * (positive + 1) / 2
    return float(total / (positive * (len(score) - positive)))
