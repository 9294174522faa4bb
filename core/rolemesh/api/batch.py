"""The values that travel on edges: a `Batch` of rows, or the named `Shards` of a distributed state.

Columns are numpy arrays, torch tensors, lists, or `Ragged`. This module does not import torch: it
uses only what tensors share with arrays (``shape``, slicing), and joins tensors with functions of
the module that defines their type.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Column: TypeAlias = Any
"""A numpy array or torch tensor of shape (rows, ...), a list of `rows` objects, or a `Ragged` of
`rows` rows."""


class Ragged:
    """Rows of different lengths: `values` of shape (total, ...) and `offsets` int64 of shape (rows
    + 1,).

    Row i is ``values[offsets[i]:offsets[i + 1]]``. `offsets` starts at 0 and never decreases.
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: Any, offsets: NDArray[np.int64]) -> None:
        self.values = values
        self.offsets = np.asarray(offsets, dtype=np.int64)
        if self.offsets.ndim != 1 or self.offsets.size == 0 or self.offsets[0] != 0:
            raise ValueError("offsets must have shape (rows + 1,) and start at 0")
        if self.offsets[-1] != len(values) or bool((np.diff(self.offsets) < 0).any()):
            raise ValueError(
                f"offsets must not decrease and must end at len(values) = {len(values)}"
            )

    @classmethod
    def from_rows(cls, rows: Sequence[Any], dtype: Any = None) -> Ragged:
        """Pack `rows` (sequences or 1-D arrays). `dtype` is the type of `values`; it is inferred if
        absent."""
        lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        filled = [np.asarray(row, dtype=dtype) for row in rows if len(row)]
        return cls(
            np.concatenate(filled) if filled else np.zeros(0, dtype=dtype or np.int64), offsets
        )

    def __len__(self) -> int:
        return self.offsets.size - 1

    def __getitem__(self, index: int | slice) -> Any:
        """Return row `index` as an array. For a slice with step 1 return its rows as a `Ragged`
        that shares `values`."""
        if isinstance(index, slice):
            start, stop = _bounds("Ragged", index, len(self))
            low = int(self.offsets[start])
            high = int(self.offsets[stop])
            return Ragged(self.values[low:high], self.offsets[start : stop + 1] - low)
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        return self.values[int(self.offsets[index]) : int(self.offsets[index + 1])]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ragged):
            return NotImplemented
        return np.array_equal(self.offsets, other.offsets) and _same(self.values, other.values)

    def __repr__(self) -> str:
        return f"Ragged(rows={len(self)}, values={len(self.values)})"


class Batch(Mapping[str, Column]):
    """An immutable mapping of named columns that have the same length.

    ``len(batch)`` is the number of columns, as for any mapping; `rows` is the number of rows.
    ``batch[2:5]`` returns rows 2 to 4 as views. ``batch | {"reward": r}`` returns a new batch with
    a column added or replaced.
    """

    __slots__ = ("_columns", "rows")

    def __init__(self, columns: Mapping[str, Column], rows: int | None = None) -> None:
        """`rows` is needed only for a batch without columns."""
        self._columns = dict(columns)
        for name, column in self._columns.items():
            rows = len(column) if rows is None else rows
            if len(column) != rows:
                raise ValueError(f"column {name!r} has {len(column)} rows, the others {rows}")
        self.rows: int = rows or 0

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            start, stop = _bounds("Batch", key, self.rows)
            return Batch({n: c[start:stop] for n, c in self._columns.items()}, rows=stop - start)
        return self._columns[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __or__(self, other: Mapping[str, Column]) -> Batch:
        return Batch({**self._columns, **other}, rows=None if self._columns or other else self.rows)

    def select(self, *names: str) -> Batch:
        """Return a batch with only the named columns."""
        return Batch({name: self._columns[name] for name in names}, rows=self.rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Batch):
            return NotImplemented
        alike = self.rows == other.rows and self.keys() == other.keys()
        return alike and all(_same(column, other[name]) for name, column in self.items())

    def __repr__(self) -> str:
        return f"Batch(rows={self.rows}, columns={list(self._columns)})"


class Shard:
    """One rank's block of a named tensor: `data` of shape `local`, at `offsets` in a tensor of
    shape `shape`."""

    __slots__ = ("data", "offsets", "shape")

    def __init__(self, data: Any, shape: Sequence[int], offsets: Sequence[int]) -> None:
        """`data` is a numpy array or torch tensor; `shape` and `offsets` have one entry per
        dimension."""
        self.data = data
        self.shape = tuple(int(n) for n in shape)
        self.offsets = tuple(int(n) for n in offsets)
        local = tuple(data.shape)
        if not len(local) == len(self.shape) == len(self.offsets):
            raise ValueError(
                f"shape {self.shape}, offsets {self.offsets} and data {local} differ in dimensions"
            )
        if any(o < 0 or o + n > g for o, n, g in zip(self.offsets, local, self.shape, strict=True)):
            raise ValueError(f"block {local} at {self.offsets} does not lie in {self.shape}")

    def into(self, target: Any) -> None:
        """Copy the block to its place in `target`, an array or tensor (as `data` is) of shape
        `shape`."""
        target[
            tuple(slice(o, o + n) for o, n in zip(self.offsets, self.data.shape, strict=True))
        ] = self.data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shard):
            return NotImplemented
        return (self.shape, self.offsets) == (other.shape, other.offsets) and _same(
            self.data, other.data
        )

    def __repr__(self) -> str:
        return f"Shard({tuple(self.data.shape)} at {self.offsets} of {self.shape})"


class Shards(dict[str, Shard]):
    """Named tensors of which this rank holds one block each; the value of a `Sharded` partition.

    A consumer that declares `Broadcast` gets the assembled tensors as a plain ``dict[str, array]``.
    """


class Gathered(dict[str, Shard]):
    """Part of a snapshot that a rank restored to another layout receives as the shards of all
    former ranks.

    `Workload.snapshot` returns one right after ``setup``. The names of the shards must differ from
    rank to rank.
    """


def concat(values: Sequence[Any], axis: int = 0) -> Any:
    """Join batches, columns or arrays along `axis` (along 0 for values that are not arrays).

    A single value is returned as it is, without a copy. Raises `ValueError` if there are no values,
    and `TypeError` for values that have no parts.
    """
    if not values:
        raise ValueError("nothing to concatenate")
    if len(values) == 1:
        return values[0]
    first = values[0]
    if isinstance(first, Batch):
        for other in values[1:]:
            if set(other) != set(first):
                raise ValueError(
                    f"batches have different columns: {sorted(first)} and {sorted(other)}"
                )
        rows = sum(v.rows for v in values) if axis == 0 else first.rows
        return Batch({name: concat([v[name] for v in values], axis) for name in first}, rows=rows)
    if isinstance(first, Ragged):
        starts = np.cumsum([0] + [int(v.offsets[-1]) for v in values[:-1]])
        offsets = [first.offsets] + [
            v.offsets[1:] + s for v, s in zip(values[1:], starts[1:], strict=True)
        ]
        return Ragged(concat([v.values for v in values]), np.concatenate(offsets))
    if isinstance(first, np.ndarray):
        return np.concatenate(values, axis=axis)
    if isinstance(first, list | tuple):
        items = [item for value in values for item in value]
        return items if isinstance(first, list) else tuple(items)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(first, torch.Tensor):
        return torch.cat(list(values), dim=axis)
    raise TypeError(
        f"a {type(first).__name__} has no parts to concatenate; return a Batch, array or list"
    )


def _bounds(what: str, rows: slice, length: int) -> tuple[int, int]:
    """Return the index of the first row of `rows`, and the index after the last one."""
    start, stop, step = rows.indices(length)
    if step != 1:
        raise ValueError(f"{what} takes slices with step 1 only")
    return start, max(start, stop)


def _same(a: Any, b: Any) -> bool:
    if hasattr(a, "shape") or hasattr(b, "shape"):
        return (
            type(a) is type(b)
            and a.dtype == b.dtype
            and tuple(a.shape) == tuple(b.shape)
            and bool((a == b).all())
        )
    return bool(a == b)
