"""Rows by key: columns that grow without a copy, an index, and the rows that changed since the last file."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolemesh.errors import RolemeshError
from rolemesh_embeddings.hashing import BUCKETS, Keys, bucket_of, mix
from rolemesh_embeddings.index import Index, Rows
from rolemesh_embeddings.reserved import ALIGNED, Reserved

__all__ = ["Store", "put"]

_OWN = {"": np.zeros(0)}
_ALONE = sys.getrefcount(_OWN[""])
"""Number of references to an array that only a dictionary has."""


class Store:
    """Rows with a key (column `keys`, int64) and other columns, each given as dtype and width (0: a scalar).

    A column `changed` (int32) has the number of the update that changed a row last.
    """

    def __init__(self, columns: Mapping[str, tuple[Any, int]], most: int = 0) -> None:
        """`most`: the maximum number of rows; 0: as many as twice this machine's memory would hold."""
        columns = {"keys": (np.int64, 0), "changed": (np.int32, 0), **columns}
        self.row_bytes = sum(np.dtype(kind).itemsize * (width or 1) for kind, width in columns.values())
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.most = min(most or 2 * memory // self.row_bytes, (1 << 31) - ALIGNED) + BUCKETS * ALIGNED
        self._reserved = {name: Reserved(kind, width, self.most) for name, (kind, width) in columns.items()}
        self.columns: dict[str, NDArray[Any]] = {name: each.array for name, each in self._reserved.items()}
        self.index = Index(self.columns["keys"], self.most)
        self._place: NDArray[Any] = Reserved(np.int32, 0, self.most).array
        """Place of each row in `fresh()`, from 1; 0: it has not changed since `settled`."""
        self._order: NDArray[Any] = Reserved(np.int64, 0, self.most).array
        self._count = 0
        self._mark, self._later = -1, 0
        """Number of the fresh rows that changed after update `_mark`; -1: not known for any update."""
        self._touched: list[Rows] = []
        self._packed: dict[str, NDArray[Any]] = {}
        self._end = 0
        self._free: list[Rows] = []
        self._gone: list[tuple[int, Keys]] = []

    def __len__(self) -> int:
        return int(self.index.counts.sum())

    @property
    def nbytes(self) -> int:
        """Bytes of the rows, without the index."""
        return int(len(self) * self.row_bytes)

    @property
    def memory(self) -> int:
        """Bytes of the rows and the index."""
        return int(self.nbytes + self.index.nbytes)

    def find(self, keys: Keys) -> Rows:
        """Return the row of each key, -1 for none."""
        return self.index.find(keys)

    def insert(self, keys: Keys) -> Rows:
        """Add rows for new, different keys, and return their numbers. The other columns are undefined."""
        rows = self._allocate(len(keys))
        self.columns["keys"][rows] = keys
        self.index.add(rows)
        return rows

    def remove(self, rows: Rows, update: int) -> None:
        """Remove rows in update number `update`."""
        if not len(rows):
            return
        self._gone.append((update, self.columns["keys"][rows].copy()))
        self.index.remove(rows)
        self._free.append(rows)
        if self._place[rows].any():
            before = self.fresh()
            self._place[rows] = 0
            self._freshen(before[self._place[before] > 0])

    def touch(self, rows: Rows, update: int) -> None:
        """Note that update number `update` has changed these different rows."""
        changed = self.columns["changed"]
        new = self._place[rows] == 0
        if self._mark >= 0:
            self._later += int(np.count_nonzero(new | (changed[rows] <= self._mark)))
        self._append(rows[new])
        self._touched.append(rows)
        changed[rows] = update

    def fresh(self, since: int = -1) -> Rows:
        """Return the rows that changed since `settled`, in a fixed order; if given, only since update `since`.

        The first is a view until rows change.
        """
        rows: Rows = self._order[: self._count]
        return rows if since < 0 else rows[self.columns["changed"][rows] > since]

    def waiting(self, since: int) -> int:
        """Return the number of rows that `fresh` returns."""
        if since < 0:
            return self._count
        if since != self._mark:
            self._mark, self._later = since, len(self.fresh(since))
        return self._later

    def packed(self) -> Mapping[str, NDArray[Any]]:
        """Return copies of the columns of `fresh`, padded with zeros: lengths that stay the same cost less to store.

        An array in which only few rows have changed since the last call is used again, unless somebody still has it.
        """
        rows, changed = self.fresh(), np.concatenate([*self._touched, np.zeros(0, np.int64)])
        size = 1 << max(6, (max(len(rows), 1) - 1).bit_length())
        for name, column in self.columns.items():
            if len(self._packed.get(name, ())) == size and sys.getrefcount(self._packed[name]) == _ALONE:
                put(self._packed[name], self._place[changed] - 1, column.take(changed, 0))
            else:
                self._packed[name] = np.zeros((size, *column.shape[1:]), column.dtype)
                np.take(column, rows, 0, self._packed[name][: len(rows)], mode="clip")
        self._touched = []
        step = size >> 4
        return {name: each[: -(-max(len(rows), 1) // step) * step] for name, each in self._packed.items()}

    def gone(self) -> Keys:
        """Return the removed keys that `settled` has not forgotten."""
        return np.concatenate([keys for _, keys in self._gone]) if self._gone else np.zeros(0, np.int64)

    def settled(self, update: int) -> None:
        """Forget which rows changed, and which keys went, up to update number `update`: they are in files."""
        before = self.fresh()
        self._place[before] = 0
        self._freshen(before[self.columns["changed"][before] > update])
        self._gone = [each for each in self._gone if each[0] > update]

    def unsettle(self) -> None:
        """Let all rows count as changed: there are no files."""
        self._place[self.fresh()] = 0
        self._freshen(self.rows())

    def rows(self) -> Rows:
        """Return all rows, ordered by key."""
        found = [self.index.rows_of(bucket) for bucket in np.flatnonzero(self.index.counts).tolist()]
        rows = np.concatenate(found) if found else np.zeros(0, np.int64)
        return rows[np.argsort(self.columns["keys"][rows])]

    def later(self, update: int) -> Rows:
        """Return the rows that changed after an update, ordered by key."""
        rows = np.flatnonzero(self.columns["changed"][: self._end] > update)
        keys = self.columns["keys"][rows]
        there = self.find(keys) == rows  # neither removed nor from an older file
        found: Rows = rows[there][np.argsort(keys[there])]
        return found

    # -------------------------------------------------------------------------------------- a new process takes rows

    def map(self, file: int, offsets: Mapping[str, int], rows: int) -> int:
        """Take `rows` rows from an open file without indexing them, and return the first one's number."""
        start = -(-self._end // ALIGNED) * ALIGNED
        self._reach(start + rows)
        for name, column in self._reserved.items():
            column.load(start, rows, file, offsets[name])
        return start

    def upsert(self, rows: Rows, gone: Keys, where: NDArray[np.bool_]) -> Rows:
        """Forget the keys `gone`, then index those mapped `rows` that are in the buckets `where`, in place of older
        ones.

        Return the rows that are now indexed.
        """
        keys = gone[where[bucket_of(mix(gone))]]
        found = self.find(keys)
        self.index.remove(found[found >= 0])
        keys = self.columns["keys"][rows]
        rows = rows[where[bucket_of(mix(keys))]]
        counts = self.index.counts.copy()
        self._free.append(self.index.add(rows))
        self.index.reorder(np.flatnonzero(self.index.counts > counts))  # the process before had them in other slots
        return rows

    def replace(
        self, rows: Rows, buckets: NDArray[np.uint8], slots: NDArray[np.int32], where: NDArray[np.bool_]
    ) -> None:
        """Index those mapped `rows` that are in the buckets `where`, in the slots that `Index.slots_of` returned."""
        here = np.flatnonzero(where[buckets])
        self._free.append(self.index.put(rows[here], buckets[here], slots[here]))

    def put(self, columns: Mapping[str, NDArray[Any]], gone: Keys, where: NDArray[np.bool_]) -> None:
        """Take rows from memory as `upsert` does. They count as changed."""
        count = len(columns["keys"])
        start, rows = self._end, np.arange(self._end, self._end + count)
        self._reach(start + count)
        for name, column in self.columns.items():
            column[start : start + count] = columns[name]
        rows = self.upsert(rows, gone, where)
        self._mark = -1
        self._append(rows)
        self._touched.append(rows)

    def gone_updates(self) -> list[list[int]]:
        """Return, for the keys that `gone` returns, the updates that removed them, and how many each removed."""
        return [[update, len(keys)] for update, keys in self._gone]

    def restore_gone(self, keys: Keys, updates: list[list[int]]) -> None:
        """Take what `gone` and `gone_updates` returned in another process."""
        for update, count in updates:
            self._gone.append((update, np.array(keys[:count])))
            keys = keys[count:]

    def _append(self, new: Rows) -> None:
        """Add rows to the fresh ones."""
        end = self._count + len(new)
        self._place[new] = np.arange(self._count + 1, end + 1)
        self._order[self._count : end] = new
        self._count = end

    def _freshen(self, kept: Rows) -> None:
        """Let `kept` be the fresh rows, in this order."""
        self._count, self._mark, self._touched = 0, -1, []
        self._packed.clear()
        self._append(kept)

    def _allocate(self, count: int) -> Rows:
        taken: list[Rows] = []
        while self._free and count:
            rows = self._free.pop()
            taken.append(rows[:count])
            if len(rows) > count:
                self._free.append(rows[count:])
            count -= len(taken[-1])
        start = self._end
        self._reach(start + count)
        return np.concatenate([*taken, np.arange(start, start + count)])

    def _reach(self, end: int) -> None:
        if end > self.most:
            raise RolemeshError(
                f"a table has no room for more than {self.most:,} rows on this rank",
                remedy="give the role more ranks, set the table's option `evict_after`, or a larger `most_rows`",
            )
        self._end = max(self._end, end)


def put(column: NDArray[Any], rows: Rows, values: NDArray[Any]) -> None:
    """Set rows of a contiguous array to `values`. Numpy is faster with whole rows as its elements."""
    row = np.dtype((np.void, column.strides[0]))
    np.put(column.view(row), rows, np.ascontiguousarray(values, column.dtype).view(row))
