"""A state from the bytes of a safetensors file that `layout` has laid out: views, no copies."""

from __future__ import annotations

import base64
import json
import math
import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np

from rolemesh.api.batch import Batch, Ragged, Shard
from rolemesh.api.workload import State
from rolemesh_checkpoint.layout import NUMPY_DTYPES, TORCH_DTYPES, SnapshotError, Tree
from rolemesh_dataplane.codec import MALFORMED
from rolemesh_runtime.run_files import open_in

__all__ = ["StateFile", "map_file"]

_LENGTH = struct.Struct("<Q")
_ITEMSIZES = {name: dtype.itemsize for dtype, name in NUMPY_DTYPES.items()}
_ITEMSIZES |= {"BF16": 2, "F8_E4M3": 1, "F8_E4M3FNUZ": 1, "F8_E5M2": 1, "F8_E5M2FNUZ": 1}


def map_file(folder: str | Path, *names: str) -> mmap.mmap:
    """Return a private map of a file in a run's folder, or in another one (see `rolemesh_runtime.run_files`).

    Writes stay in this process, and the map outlives the file's name. Raises `OSError`, and `ValueError` for an empty
    file.
    """
    with open_in(folder, *names) as file:
        return mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)


class StateFile:
    """The state in `buffer`. Arrays and tensors are views of it, writable if it is.

    Raises `SnapshotError`, with `where`, for bytes that are not such a file.
    """

    def __init__(self, buffer: Any, where: str) -> None:
        self._buffer = buffer
        self._where = where
        try:
            (length,) = _LENGTH.unpack_from(buffer)
            self._start = _LENGTH.size + length
            if self._start > len(buffer):
                raise ValueError(f"a header of {length} bytes in a file of {len(buffer)}")
            header = json.loads(bytes(buffer[_LENGTH.size : self._start]))
            self.record: dict[str, Any] = json.loads(header.pop("__metadata__")["rolemesh"])
            """``step``, ``log``, ``tree``."""
            self._table: dict[str, dict[str, Any]] = header
            self.step, self.log = int(self.record["step"]), int(self.record["log"])
            self._tree: Tree = self.record["tree"]
        except (struct.error, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise self._damaged(error) from error

    def state(self) -> State:
        """Return the state as `snapshot` returned it; DTensors have become their local blocks."""
        try:
            state = self._value(self._tree)
            if not isinstance(state, dict):
                raise ValueError("the tree is no mapping")
            return state
        except MALFORMED as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> SnapshotError:
        return SnapshotError(
            f"this is no snapshot, or a damaged one: {error}",
            where=self._where,
            remedy="'rolemesh checkpoint verify' tells which snapshots are intact",
        )

    def _value(self, tree: Tree) -> Any:
        if type(tree) is not list:
            return tree
        tag, *rest = tree
        return getattr(self, f"_from_{_TAGS[tag]}")(*rest)

    def _from_integer(self, text: str) -> int:
        return int(text)

    def _from_float(self, text: str) -> float:
        return float(text)

    def _from_text(self, text: str) -> bytes:
        return base64.b64decode(text, validate=True)

    def _from_bytes(self, name: str) -> bytes:
        start, stop = self._span(name, "U8")
        return bytes(self._buffer[start:stop])

    def _from_list(self, items: list[Tree]) -> list[Any]:
        return [self._value(item) for item in items]

    def _from_tuple(self, items: list[Tree]) -> tuple[Any, ...]:
        return tuple(self._from_list(items))

    def _from_mapping(self, pairs: list[list[Tree]]) -> dict[Any, Any]:
        return {self._value(key): self._value(item) for key, item in pairs}

    def _from_batch(self, rows: int, pairs: list[list[Tree]]) -> Batch:
        return Batch(self._from_mapping(pairs), rows=rows)

    def _from_ragged(self, values: Tree, offsets: Tree) -> Ragged:
        return Ragged(self._value(values), self._value(offsets))

    def _from_shard(self, data: Tree, shape: list[int], offsets: list[int]) -> Shard:
        return Shard(self._value(data), shape, offsets)

    def _from_scalar(self, array: Tree) -> Any:
        return self._value(array)[()]

    def _from_array(self, name: str | None, dtype: str, shape: list[int]) -> np.ndarray[Any, Any]:
        kind = np.dtype(dtype)
        start = self._start_of(name, NUMPY_DTYPES[kind], math.prod(shape) * kind.itemsize)
        return np.frombuffer(self._buffer, kind, math.prod(shape), start).reshape(shape)

    def _from_array_bytes(self, name: str, described: Any, shape: list[int]) -> np.ndarray[Any, Any]:
        kind = np.lib.format.descr_to_dtype(_tuples(described))  # type: ignore[no-untyped-call]
        if kind.hasobject:
            raise ValueError(f"an array of {kind}")
        start = self._start_of(name, "U8", math.prod(shape) * kind.itemsize)
        return np.ndarray(tuple(shape), kind, self._buffer, start)

    def _from_tensor(self, name: str | None, dtype: str, shape: list[int]) -> Any:
        return self._tensor(name, TORCH_DTYPES[dtype], dtype, shape)

    def _from_tensor_bytes(self, name: str, dtype: str, shape: list[int]) -> Any:
        return self._tensor(name, "U8", dtype, shape)

    def _tensor(self, name: str | None, stored: str, dtype: str, shape: list[int]) -> Any:
        import torch

        kind, count = getattr(torch, dtype), math.prod(shape)
        start = self._start_of(name, stored, count * kind.itemsize)
        if not count:
            return torch.empty(shape, dtype=kind)
        return torch.frombuffer(self._buffer, dtype=kind, count=count, offset=start).reshape(shape)

    def _start_of(self, name: str | None, dtype: str, nbytes: int) -> int:
        if not nbytes:
            return 0
        start, stop = self._span(str(name), dtype)
        if stop - start != nbytes:
            raise ValueError(f"{name!r} has {stop - start} bytes, not {nbytes}")
        return start

    def _span(self, name: str, dtype: str) -> tuple[int, int]:
        entry = self._table[name]
        start, stop = entry["data_offsets"]
        if entry["dtype"] != dtype or not 0 <= start <= stop <= len(self._buffer) - self._start:
            raise ValueError(f"{name!r} is said to be {entry}")
        return self._start + start, self._start + stop


_TAGS = {
    "i": "integer", "f": "float", "b": "text", "B": "bytes", "l": "list", "t": "tuple", "d": "mapping",
    "batch": "batch", "r": "ragged", "S": "shard", "s": "scalar", "n": "array", "N": "array_bytes", "T": "tensor",
    "U": "tensor_bytes",
}  # fmt: skip


def _tuples(described: Any) -> Any:
    """Return a dtype's description in numpy's form; JSON has turned its tuples into lists."""
    if isinstance(described, list):
        return [tuple(_field(part) for part in field) for field in described]
    return described


def _field(part: Any) -> Any:
    if isinstance(part, list):
        return tuple(part) if all(isinstance(item, (int, str)) for item in part) else _tuples(part)
    return part
