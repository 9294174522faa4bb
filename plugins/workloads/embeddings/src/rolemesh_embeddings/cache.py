"""Rows that a caller keeps because it asks for them often."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolemesh_embeddings.hashing import Keys, mix
from rolemesh_embeddings.store import put

__all__ = ["Cache"]


class Cache:
    """The values of at most `rows` keys (rounded up to a power of two), each with the update up to which they hold.

    A key has one place. Another key takes it when the first has not been found since somebody last wanted the place
    (second chance, Corbató 1968).
    """

    def __init__(self, rows: int) -> None:
        size = 1 << max(rows - 1, 0).bit_length()
        self._keys, self._found = np.zeros(size, np.int64), np.zeros(size, np.bool_)
        self._updates = np.full(size, -1, np.int32)
        self._values = np.zeros((size, 0), np.float32)

    def find(self, keys: Keys) -> tuple[NDArray[np.bool_], NDArray[np.int32], NDArray[np.float32]]:
        """Return which of different keys are here, and their updates and values."""
        at = self._at(keys)
        here = (self._keys[at] == keys) & (self._updates[at] >= 0)
        at = at[here]
        self._found[at] = True
        return here, self._updates[at], self._values.take(at, 0)

    def put(self, keys: Keys, values: NDArray[np.float32], update: int) -> None:
        """Keep the values (keys, dim) of different keys, which hold up to `update`, where there is a place."""
        if self._values.shape[1] != values.shape[1]:
            self._values = np.zeros((len(self._keys), values.shape[1]), np.float32)
        at = self._at(keys)
        free = (self._keys[at] == keys) | ~self._found[at]
        self._found[at[~free]] = False
        self._keys[at[free]] = keys[free]
        last = np.flatnonzero(free & (self._keys[at] == keys))  # of several keys for one place
        self._updates[at[last]] = update
        put(self._values, at[last], values.take(last, 0))

    def clear(self) -> None:
        """Keep nothing."""
        self._updates[:] = -1

    def _at(self, keys: Keys) -> NDArray[Any]:
        return (mix(keys) & np.uint64(len(self._keys) - 1)).astype(np.int64)
