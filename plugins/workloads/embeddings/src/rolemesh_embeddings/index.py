"""An index from 64-bit keys to rows: open addressing with linear probing, per bucket, for whole arrays of keys."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolemesh_embeddings.hashing import BUCKETS, Keys, bucket_of, mix
from rolemesh_embeddings.reserved import Reserved

__all__ = ["Index"]

Rows = NDArray[np.int64]


class Index:
    """Which row each key has. The keys themselves are in `keys`, by row.

    A bucket has a region of `slots` whose size is a power of two, at most half of it used. A slot has a row's number
    plus one, or 0. The first region, of one slot, is that of all empty buckets.
    """

    def __init__(self, keys: Keys, most: int) -> None:
        self._keys = keys
        self.slots: NDArray[Any] = Reserved(np.int32, 0, 16 * most + 1).array
        self.starts, self.sizes = np.zeros(BUCKETS, np.int64), np.ones(BUCKETS, np.int64)
        self.counts = np.zeros(BUCKETS, np.int64)
        self.expected = np.zeros(BUCKETS, np.int64)
        """Number of keys for which a bucket gets a region at once when it needs a larger one."""
        self.orders: NDArray[np.int64] = np.zeros(BUCKETS, np.int64)
        """A random number for each bucket. While it stays the same, no key changes its slot in the region."""
        self._end = 1
        self._unused: dict[int, list[int]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all regions."""
        return int(self._end * self.slots.itemsize)

    def find(self, keys: Keys) -> Rows:
        """Return the row of each key, -1 for none."""
        hashes = mix(keys)
        buckets = bucket_of(hashes)
        start, mask = self.starts[buckets], self.sizes[buckets] - 1
        at = start + (hashes.view(np.int64) & mask)
        rows = self.slots[at].astype(np.int64) - 1
        going = np.flatnonzero((rows >= 0) & (self._keys[rows] != keys))
        while len(going):
            begin = start[going]
            at[going] = begin + ((at[going] - begin + 1) & mask[going])
            found = self.slots[at[going]].astype(np.int64) - 1
            rows[going] = found
            going = going[(found >= 0) & (self._keys[found] != keys[going])]
        return rows

    def slots_of(self, rows: Rows) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
        """Return the bucket of each indexed row, and the row's slot in the bucket's region."""
        hashes = mix(self._keys[rows])
        buckets, numbers = bucket_of(hashes), (rows + 1).astype(self.slots.dtype)
        start, mask = self.starts[buckets], self.sizes[buckets] - 1
        at = hashes.view(np.int64) & mask
        going = np.flatnonzero(self.slots[start + at] != numbers)
        while len(going):
            at[going] = (at[going] + 1) & mask[going]
            going = going[self.slots[start[going] + at[going]] != numbers[going]]
        return buckets.astype(np.uint8), at.astype(np.int32)

    def add(self, rows: Rows) -> Rows:
        """Index rows whose keys are different. Return those that had some of these keys before."""
        hashes = mix(self._keys[rows])
        buckets = bucket_of(hashes)
        full = 2 * (self.counts + np.bincount(buckets, minlength=BUCKETS)) > self.sizes
        if full.any():
            here = np.flatnonzero(full[buckets])
            new = here[self.find(self._keys[rows[here]]) < 0]
            more = np.bincount(buckets[new], minlength=BUCKETS)
            self._make_room(np.flatnonzero(2 * (self.counts + more) > self.sizes), more)
        before = self._place(rows, hashes, buckets)
        self.counts += np.bincount(buckets, minlength=BUCKETS)
        self.counts -= np.bincount(bucket_of(mix(self._keys[before])), minlength=BUCKETS)
        return before

    def put(self, rows: Rows, buckets: NDArray[np.uint8], slots: NDArray[np.int32]) -> Rows:
        """Index rows in the slots that `slots_of` returned for them. Return those that had some of their keys before.

        The regions must be in the order that they had then: see `orders`.
        """
        at = self.starts[buckets] + slots
        before = self.slots[at].astype(np.int64) - 1
        self.slots[at] = rows + 1
        had = before >= 0
        self.counts += np.bincount(buckets[~had], minlength=BUCKETS)
        return before[had]

    def reorder(self, buckets: Rows) -> None:
        """Note that keys of these different buckets have other slots than before."""
        self.orders[buckets] = np.frombuffer(os.urandom(8 * len(buckets)), np.int64)

    def remove(self, rows: Rows) -> None:
        """Forget rows. The buckets are built again without them."""
        gone = np.zeros(int(rows.max(initial=-1)) + 1, np.bool_)
        gone[rows] = True
        buckets = np.unique(bucket_of(mix(self._keys[rows])))
        for bucket in buckets.tolist():
            kept = self.rows_of(bucket)
            kept = kept[(kept >= len(gone)) | ~gone[np.minimum(kept, len(gone) - 1)]]
            self.region(bucket)[:] = 0
            self.counts[bucket] = len(kept)
            hashes = mix(self._keys[kept])
            self._place(kept, hashes, np.full(len(kept), bucket))
        self.reorder(buckets)

    def rows_of(self, bucket: int) -> Rows:
        """Return the rows of a bucket, ascending."""
        slots = self.region(bucket)
        return np.sort(slots[slots > 0]).astype(np.int64) - 1

    def region(self, bucket: int) -> NDArray[Any]:
        """Return the slots of a bucket."""
        start = int(self.starts[bucket])
        return self.slots[start : start + int(self.sizes[bucket])]

    def load(self, bucket: int, local: NDArray[Any], first: int, order: int) -> None:
        """Take a bucket's region: slots with the number of a row plus one, counted from row `first`."""
        self._take(bucket, len(local))
        self.orders[bucket] = order
        region = self.region(bucket)
        np.multiply(local > 0, np.int32(first), out=region)
        region += local
        self.counts[bucket] = int(np.count_nonzero(local))

    def _make_room(self, buckets: Rows, more: NDArray[np.int64]) -> None:
        """Give buckets regions that are twice as large as needed, or more."""
        if not len(buckets):
            return
        kept = [self.rows_of(bucket) for bucket in buckets.tolist()]
        for bucket in buckets.tolist():
            keys = max(self.counts[bucket] + more[bucket], self.expected[bucket])
            self._take(bucket, 1 << int(2 * keys).bit_length())
        self.reorder(buckets)
        rows = np.concatenate(kept)
        hashes = mix(self._keys[rows])
        self._place(rows, hashes, bucket_of(hashes))

    def _take(self, bucket: int, size: int) -> None:
        """Give a bucket an empty region of `size` slots."""
        if self.sizes[bucket] > 1:
            self.region(bucket)[:] = 0
            self._unused.setdefault(int(self.sizes[bucket]), []).append(int(self.starts[bucket]))
        unused = self._unused.get(size)
        if not unused:
            unused = [self._end]
            self._end += size
        self.starts[bucket], self.sizes[bucket] = unused.pop(), size

    def _place(self, rows: Rows, hashes: NDArray[np.uint64], buckets: NDArray[Any]) -> Rows:
        """Let slots have these rows, and return the rows that had the same keys."""
        start, mask = self.starts[buckets], self.sizes[buckets] - 1
        at, numbers = start + (hashes.view(np.int64) & mask), (rows + 1).astype(self.slots.dtype)
        going, before = np.arange(len(rows)), [rows[:0]]
        while len(going):
            place, own = at[going], numbers[going]
            free = self.slots[place] == 0
            self.slots[place[free]] = own[free]  # of several rows for one slot the last one gets it
            others = self.slots[place] != own
            going, place, own = going[others], place[others], own[others]
            there = self.slots[place].astype(np.int64) - 1
            same = self._keys[there] == self._keys[rows[going]]
            self.slots[place[same]] = own[same]
            before.append(there[same])
            going, begin = going[~same], start[going[~same]]
            at[going] = begin + ((at[going] - begin + 1) & mask[going])
        return np.concatenate(before)
