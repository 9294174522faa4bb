"""A table: rows that are looked up by key, and changed by gradients."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolemesh.api.batch import Batch, Ragged
from rolemesh.api.context import stable_seed
from rolemesh_embeddings.hashing import BUCKETS, Keys, drawn, drawn_bits, firsts
from rolemesh_embeddings.index import Rows
from rolemesh_embeddings.options import TableOptions
from rolemesh_embeddings.store import Store, put

__all__ = ["Floats", "Table", "begun", "looked_up", "summed"]

Floats = NDArray[np.float32]
RECENT = 4
"""Number of lookups whose rows a table remembers: updates with the same keys follow."""


class Table:
    """The rows of a table on one rank. A key that has no row yet is looked up with the values with which it begins."""

    def __init__(self, name: str, options: TableOptions, seed: int) -> None:
        self.options = options
        self._name, self._seed = name, seed
        self.updates = 0
        """Number of updates of this table, which optimizers count."""
        self._half = options.dtype == "bfloat16"
        self._round_seed = stable_seed(seed, "rounding", name)
        slots = self._slots = options.optimizer.slots()
        columns: dict[str, tuple[Any, int]] = {"values": (np.uint16 if self._half else np.float32, options.dim)}
        if slots:
            columns["kept"] = (np.float32, slots * options.dim)
        self.store = Store(columns, options.most_rows)
        self._recent: deque[tuple[Keys, Rows]] = deque(maxlen=RECENT)
        # Keys that have not been seen often enough for a row.
        self.seen = Store({"times": (np.int32, 0)}, options.most_rows) if options.admit_after > 1 else None

    @property
    def kind(self) -> list[Any]:
        """Form of the table's rows in files and states: dim, type of the values, optimizer."""
        return [self.options.dim, self.options.dtype, self.options.optimizer.use]

    def lookup(self, keys: Keys) -> tuple[Floats, int]:
        """Return the values of different keys, float32 (keys, dim), and how many of them have a row."""
        rows = self.store.find(keys)
        self._recent.append((keys, rows))
        known = rows >= 0
        if known.all():
            return self._values(rows), len(rows)
        found = np.empty((len(keys), self.options.dim), np.float32)
        found[known] = self._values(rows[known])
        found[~known] = begun(self.options, self._seed, self._name, keys[~known])
        return found, int(known.sum())

    def changed(self, keys: Keys, since: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which of different keys may have other values now than after the update `since` of each."""
        rows = self.store.find(keys)
        return (rows < 0) | (self.store.columns["changed"][rows] > since)

    def update(self, keys: Keys, grads: Floats, update: int) -> int:
        """Apply the gradients (keys, dim) of different keys in update number `update` of the rank, from 1. Return how
        many keys were not admitted."""
        self.updates += 1
        rows = self._found(keys)
        new = rows < 0
        if new.any():
            admitted = self._admitted(keys[new], update)
            made = keys[new][admitted]
            fresh = self.store.insert(made)
            self._write(fresh, begun(self.options, self._seed, self._name, made))
            if "kept" in self.store.columns:
                kept = np.empty((len(made), self._slots * self.options.dim), np.float32)
                self.options.optimizer.begin(kept)
                put(self.store.columns["kept"], fresh, kept)
            places = np.flatnonzero(new)
            rows[places[admitted]] = fresh
            if not admitted.all():
                keep = rows >= 0
                rows, grads = rows[keep], grads[keep]
        values, optimizer = self._values(rows), self.options.optimizer
        if "kept" in self.store.columns:
            kept = self.store.columns["kept"].take(rows, 0)
            optimizer.step(values, kept.reshape(len(rows), self._slots, self.options.dim), grads, self.updates)
            put(self.store.columns["kept"], rows, kept)
        else:
            optimizer.step(values, np.empty((len(rows), 0, 0), np.float32), grads, self.updates)
        known = self.store.columns["keys"]
        noise = drawn_bits(known[rows], self.options.dim, self._round_seed ^ update) if self._half else None
        self._write(rows, values, noise)
        self.store.touch(rows, update)
        return len(keys) - len(rows)

    def exported(self, since: int) -> dict[str, NDArray[Any]]:
        """Return `keys`, ascending, `values`, and `changed`, the update of the last change, of the rows that changed
        after `since`."""
        store = self.store
        rows = store.rows() if since < 0 else store.later(since)
        columns = {name: store.columns[name][rows] for name in ("keys", "changed")}
        return {**columns, "values": self._values(rows)}

    def evict(self, update: int) -> int:
        """Remove old rows of the bucket whose turn it is. Return their number."""
        removed = 0
        if self.options.evict_after is not None:
            for store in self.stores().values():
                rows = store.index.rows_of(update % BUCKETS)
                old = rows[store.columns["changed"][rows] < update - self.options.evict_after]
                store.remove(old, update)
                self._recent.clear()
                removed += len(old) if store is self.store else 0
        return removed

    def stores(self) -> dict[str, Store]:
        """Return what the table is made of, by the end of its name."""
        return {"": self.store} if self.seen is None else {"": self.store, "?": self.seen}

    def _admitted(self, keys: Keys, update: int) -> NDArray[np.bool_]:
        """Count that different keys without rows were seen. Return which of them have been seen often enough."""
        if self.seen is None:
            return np.ones(len(keys), np.bool_)
        rows = self.seen.find(keys)
        new = rows < 0
        rows[new] = self.seen.insert(keys[new])
        times = self.seen.columns["times"]
        times[rows] = np.where(new, 1, times[rows] + 1)
        self.seen.touch(rows, update)
        enough: NDArray[np.bool_] = times[rows] >= self.options.admit_after
        self.seen.remove(rows[enough], update)
        return enough

    def _found(self, keys: Keys) -> Rows:
        """Return the row of each key, -1 for none. Recent lookups' rows are known."""
        for known, rows in reversed(self._recent):
            if len(known) == len(keys) and (known == keys).all():
                rows, new = rows.copy(), rows < 0
                if new.any():
                    rows[new] = self.store.find(keys[new])
                return rows
        return self.store.find(keys)

    def _values(self, rows: Rows) -> Floats:
        found: NDArray[Any] = self.store.columns["values"].take(rows, 0)
        return _wide(found) if self._half else found

    def _write(self, rows: Rows, values: Floats, noise: NDArray[np.uint16] | None = None) -> None:
        put(self.store.columns["values"], rows, _narrow(values, noise) if self._half else values)


def begun(options: TableOptions, seed: int, table: str, keys: Keys) -> Floats:
    """Return the values with which the rows of a table begin, float32 (keys, dim). `seed`: the job's."""
    found = drawn(keys, options.dim, stable_seed(seed, "table", table), options.begin, options.scale)
    return _wide(_narrow(found)) if options.dtype == "bfloat16" else found


def looked_up(updates: Sequence[int], parts: Sequence[Mapping[str, Any]]) -> Batch:
    """Return a row for each part: its number of updates, and for each table the keys and values that it has."""
    found: dict[str, Any] = {"updates": np.array(updates)}
    for name in parts[0]:
        places = np.cumsum([0, *(len(part[name][0]) for part in parts)])
        for column, each in zip(("keys", "values"), zip(*(part[name] for part in parts), strict=True), strict=True):
            found[f"{name}_{column}"] = Ragged(np.concatenate(each) if len(each) > 1 else each[0], places)
    return Batch(found)


def summed(keys: NDArray[Any], grads: Floats, at: Rows | None = None) -> tuple[Keys, Floats]:
    """Return the different keys, ascending, and the sum of each one's gradients, in the order in which they came.

    `at`: the places to take, ascending; None: all. The results may be views.
    """
    keys, grads = np.asarray(keys, np.int64), np.asarray(grads, np.float32)
    if at is None:
        at = np.arange(len(keys))
    whole = slice(at[0], at[-1] + 1) if len(at) and at[-1] + 1 - at[0] == len(at) else None
    found = keys[whole] if whole else keys[at]
    if (found[1:] > found[:-1]).all():
        return found, grads[whole] if whole else grads.take(at, 0)
    order = np.argsort(found, kind="stable")
    ordered, sums = found[order], grads.take(at[order], 0)
    first = firsts(ordered)
    if first.all():
        return ordered, sums
    starts = np.flatnonzero(first)
    return ordered[starts], np.add.reduceat(sums, starts, axis=0)


def _narrow(values: Floats, noise: NDArray[np.uint16] | None = None) -> NDArray[np.uint16]:
    """Return bfloat16 as bits: the nearest ones, ties to even.

    With `noise`, 16 random bits for each value, the one above or below, so that the expected result is the value (Gupta
    et al. 2015, arXiv:1502.02551): changes below half a bit of a value add up instead of being lost.
    """
    bits = np.ascontiguousarray(values).view(np.uint32)
    more = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)) if noise is None else noise
    return ((bits + more) >> np.uint32(16)).astype(np.uint16)


def _wide(bits: NDArray[np.uint16]) -> Floats:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
