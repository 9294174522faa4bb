"""Files with rows: the rows that changed since the file before, and all rows of some buckets, ready to be mapped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolemesh_embeddings.hashing import BUCKETS, Keys
from rolemesh_embeddings.index import Rows
from rolemesh_embeddings.reserved import PAGE
from rolemesh_embeddings.store import Store

__all__ = ["RowFile", "write"]


def changed_rows(store: Store) -> tuple[Rows, Keys]:
    """Return the rows that changed since the file before, and the keys that were removed."""
    return store.fresh(), store.gone()


def write(
    path: Path,
    stores: Mapping[str, Store],
    buckets: list[int],
    changed: Callable[[Store], tuple[Rows, Keys]] = changed_rows,
) -> None:
    """Write the rows that `changed` returns, and all rows of `buckets`.

    A process that is killed leaves no half of a file under this name. The file is on disk after `os.fsync` only.
    Raises `OSError` if there is no room.
    """
    parts: list[dict[str, Any]] = []
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.seek(PAGE)

            def put(array: NDArray[Any]) -> int:
                start = -(-file.tell() // PAGE) * PAGE
                file.seek(start)
                file.write(memoryview(np.ascontiguousarray(array)).cast("B") if array.size else b"")
                return start

            for name, store in stores.items():
                rows, gone = changed(store)
                slots = [put(each) for each in store.index.slots_of(rows)]
                orders = store.index.orders.tolist()
                about = {"store": name, "bucket": -1, "gone": [put(gone), len(gone)], "slots": slots, "orders": orders}
                parts.append({**about, **_columns(store, rows, put)})
                for bucket in buckets:
                    rows = store.index.rows_of(bucket)
                    region = store.index.region(bucket)
                    local = np.zeros(len(region), np.int32)
                    used = region > 0
                    local[used] = np.searchsorted(rows, region[used] - 1) + 1
                    about = {"store": name, "bucket": bucket, "index": [put(local), len(local)]}
                    parts.append({**about, "order": orders[bucket], **_columns(store, rows, put)})
            head = json.dumps(parts).encode()
            start = put(np.frombuffer(head, np.uint8))
            file.truncate(-(-file.tell() // PAGE) * PAGE)
            file.seek(0)
            file.write(json.dumps([start, len(head)]).encode().ljust(PAGE))
        beside.rename(path)
    finally:
        beside.unlink(missing_ok=True)


def _columns(store: Store, rows: Rows, put: Any) -> dict[str, Any]:
    return {"rows": len(rows), "columns": {name: put(column.take(rows, 0)) for name, column in store.columns.items()}}


class RowFile:
    """An open file. Raises `OSError` and `ValueError` for one that cannot be read."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            start, size = json.loads(os.pread(self._fd, PAGE, 0))
            parts = json.loads(os.pread(self._fd, size, start))
            self._parts = {(part["store"], part["bucket"]): part for part in parts}
        except (ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
            os.close(self._fd)
            raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Close the file. Mapped rows stay."""
        os.close(self._fd)

    def base(self, name: str, store: Store, bucket: int) -> None:
        """Map all rows of a bucket, which is empty before."""
        part = self._parts.get((name, bucket))  # None: the table is newer than the file
        if part is not None and part["rows"]:
            start = store.map(self._fd, part["columns"], part["rows"])
            store.index.load(bucket, self._read(*part["index"], np.int32), start, part.get("order", 0))

    def order(self, name: str, bucket: int) -> int:
        """Return `Index.orders` of a bucket that `base` maps; 0 if it maps no rows, or the number is not known."""
        part = self._parts.get((name, bucket), {"rows": 0})
        return part.get("order", 0) if part["rows"] else 0

    def orders(self, name: str) -> NDArray[np.int64]:
        """Return `Index.orders` when the file was written, with 0 for buckets of other ranks; -1 if it is not known."""
        return np.array(self._parts.get((name, -1), {}).get("orders", [-1] * BUCKETS), np.int64)

    def changed(self, name: str, store: Store, where: NDArray[np.bool_], ordered: NDArray[np.bool_]) -> None:
        """Map the rows that changed, and take those of the buckets `where`.

        The buckets `ordered` have their keys in the slots that they had when the file was written.
        """
        part = self._parts.get((name, -1))
        if part is None:
            return
        gone: Keys = self._read(*part["gone"], np.int64)
        start, count = store.map(self._fd, part["columns"], part["rows"]), part["rows"]
        rows = np.arange(start, start + count)
        if "slots" in part:
            at = part["slots"]
            buckets, slots = self._read(at[0], count, np.uint8), self._read(at[1], count, np.int32)
            store.replace(rows, buckets, slots, where & ordered)
            where = where & ~ordered
            rows = rows[where[buckets]]
        if len(rows) or len(gone):
            store.upsert(rows, gone, where)

    def _read(self, start: int, count: int, dtype: Any) -> NDArray[Any]:
        data = os.pread(self._fd, count * np.dtype(dtype).itemsize, start)
        return np.frombuffer(data, dtype)
