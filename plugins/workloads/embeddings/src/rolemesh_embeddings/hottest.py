"""The keys that are updated most, in bounded memory."""

from __future__ import annotations

import numpy as np

from rolemesh_embeddings.hashing import Keys

__all__ = ["Hottest"]

KEPT = 1024
EVERY = 8


class Hottest:
    """Counts in how many updates a key is, of every `EVERY`-th update.

    Of `KEPT` keys the counts are kept, each at most a `KEPT`-th of all counts too low (Misra and Gries 1982; merged as
    by Agarwal et al. 2012).
    """

    def __init__(self, shown: int) -> None:
        self._shown, self._turn = shown, 0
        self._keys, self._counts = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def add(self, keys: Keys) -> None:
        """Count different keys."""
        self._turn += 1
        if not self._shown or self._turn % EVERY:
            return
        joined, where = np.unique(np.concatenate([self._keys, keys]), return_inverse=True)
        counts = np.bincount(where, np.concatenate([self._counts, np.ones(len(keys))])).astype(np.int64)
        if len(joined) > KEPT:
            counts -= np.partition(counts, -KEPT - 1)[-KEPT - 1]
            joined, counts = joined[counts > 0], counts[counts > 0]
        self._keys, self._counts = joined, counts

    def top(self) -> list[list[int]]:
        """Return the hottest keys with their counts, the hottest first."""
        order = np.lexsort((self._keys, -self._counts))[: self._shown]
        return [[int(self._keys[at]), int(self._counts[at]) * EVERY] for at in order]
