"""A rank's state as a safetensors file: which tensors it has, under which names, and the header that says so.

The header follows https://github.com/huggingface/safetensors (format). Its ``__metadata__`` has three parts: DCP's
sharding information, as `torch.distributed.checkpoint.HuggingFaceStorageReader` wants it, so that the files of all
ranks of a role are one checkpoint; ``format``; and ``rolemesh``: step, position in the log, and the state as a tree
whose leaves name the tensors. Other values are in the tree itself.

Names are the keys on the way, joined with dots, as DCP flattens a nested state. A tensor that is no `Shard` belongs to
its rank: ranks after the first add ``@<rank>``. Shards without any element are in the tree only.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from rolemesh.api.batch import Batch, Ragged, Shard
from rolemesh.api.workload import State
from rolemesh.errors import RolemeshError

__all__ = ["NUMPY_DTYPES", "TORCH_DTYPES", "Block", "BlockLayout", "Flat", "SnapshotError", "flatten"]

ALIGNMENT = 64
IN_TREE = 64 << 10
"""Maximum bytes of a value that is stored as text in the tree. Its length may change from step to step without a new
layout."""

NUMPY_DTYPES = {
    np.dtype(kind): name
    for kind, name in {
        "?": "BOOL", "u1": "U8", "i1": "I8", "u2": "U16", "i2": "I16", "u4": "U32", "i4": "I32", "u8": "U64",
        "i8": "I64", "f2": "F16", "f4": "F32", "f8": "F64", "c8": "C64",
    }.items()
}  # fmt: skip
"""numpy's dtypes that safetensors supports. Values of others are stored as their bytes."""
TORCH_DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip
"""torch's dtypes, without ``torch.``, that safetensors and DCP's reader support. Values of others are stored as their
bytes."""

_PLAIN = frozenset({type(None), bool, str})
_LENGTH = struct.Struct("<Q")

Tree: TypeAlias = Any
"""None, a boolean, a number or a string as itself; any other value as a list whose first item is its type."""


class SnapshotError(RolemeshError):
    """A snapshot cannot be written, found or trusted."""

    exit_code = 1


class Block(NamedTuple):
    """A tensor to store. `source` is a numpy array or torch tensor of `nbytes` bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    itemsize: int
    nbytes: int
    source: Any


class Flat(NamedTuple):
    """A state, taken apart. `blocks` are in the order of the file."""

    tree: Tree
    blocks: list[Block]


def flatten(state: State, rank: int) -> Flat:
    """Take a state apart without copying a tensor.

    Raises `TypeError`, with the path to it, for a value that a snapshot cannot hold.
    """
    if not isinstance(state, Mapping):
        kind = type(state).__qualname__
        raise TypeError(f"snapshot() returned a {kind}; return a mapping of names to values, or None")
    flat = _Flattener(rank)
    tree = flat.tree(state, ())
    flat.blocks.sort(key=lambda block: -block.itemsize)  # stable: everything is aligned to its own size
    return Flat(tree, flat.blocks)


class _Flattener:
    def __init__(self, rank: int) -> None:
        self.suffix = f"@{rank}" if rank else ""
        self.blocks: list[Block] = []
        self.names: set[str] = {"__metadata__"}
        self.torch = sys.modules.get("torch")

    def tree(self, value: Any, path: tuple[Any, ...]) -> Tree:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is np.ndarray:
            return self.array(value, path)
        if self.torch is not None and isinstance(value, self.torch.Tensor):
            return self.tensor(value, path)
        if isinstance(value, Shard):
            return self.shard(value, path)
        if isinstance(value, np.generic):
            return ["s", self.array(np.asarray(value), path)]
        if isinstance(value, (int, float, str)):
            return _number(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self.raw(bytes(value), path)
        if isinstance(value, Batch):
            return ["batch", value.rows, self.pairs(value, path)]
        if isinstance(value, Mapping):
            return ["d", self.pairs(value, path)]
        if isinstance(value, (list, tuple)):
            tag = "t" if isinstance(value, tuple) else "l"
            return [tag, [self.tree(item, (*path, index)) for index, item in enumerate(value)]]
        if isinstance(value, Ragged):
            return ["r", self.tree(value.values, (*path, "values")), self.tree(value.offsets, (*path, "offsets"))]
        if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
            return self.array(np.asarray(value), path)
        raise TypeError(
            f"{_shown(path)} is a {kind.__module__}.{kind.__qualname__}, which has no place in a snapshot; store "
            "arrays, tensors, bytes, numbers, text, and lists and mappings of them"
        )

    def pairs(self, value: Mapping[Any, Any], path: tuple[Any, ...]) -> list[list[Tree]]:
        return [[self.tree(key, path), self.tree(item, (*path, key))] for key, item in value.items()]

    def raw(self, value: bytes, path: tuple[Any, ...]) -> Tree:
        if len(value) <= IN_TREE:
            return ["b", base64.b64encode(value).decode()]
        return ["B", self.add(path, "U8", np.frombuffer(value, np.uint8), 1)]

    def array(self, value: np.ndarray[Any, Any], path: tuple[Any, ...], shard: Shard | None = None) -> Tree:
        dtype = value.dtype
        known = NUMPY_DTYPES.get(dtype)
        if known is not None:
            return ["n", self.add(path, known, value, dtype.itemsize, shard), dtype.str, value.shape]
        described = np.lib.format.dtype_to_descr(dtype)  # type: ignore[no-untyped-call]
        back = np.lib.format.descr_to_dtype(described)  # type: ignore[no-untyped-call]
        if dtype.hasobject or back != dtype:
            raise TypeError(f"{_shown(path)} is an array of {dtype}, which has no canonical bytes; store numbers")
        if shard is not None:
            raise TypeError(f"{_shown(path)} is a Shard of {dtype}, which safetensors does not know; use another dtype")
        contiguous = np.ascontiguousarray(value).reshape(-1)
        flat = contiguous.view(np.uint8) if value.size else np.zeros(0, np.uint8)
        return ["N", self.add(path, "U8", flat, 1), described, value.shape]

    def tensor(self, value: Any, path: tuple[Any, ...], shard: Shard | None = None) -> Tree:
        torch = self.torch
        assert torch is not None
        local = (value.to_local() if hasattr(value, "to_local") else value).detach()
        if local.layout is not torch.strided or local.is_quantized:
            raise TypeError(f"{_shown(path)} is a {local.layout} tensor; store the dense tensors that it is made of")
        dtype, shape = str(local.dtype).removeprefix("torch."), tuple(local.shape)
        known = TORCH_DTYPES.get(dtype)
        if known is not None:
            return ["T", self.add(path, known, local, local.element_size(), shard), dtype, shape]
        if shard is not None:
            raise TypeError(f"{_shown(path)} is a Shard of {dtype}, which safetensors does not know; use another dtype")
        flat = local.cpu().contiguous().reshape(-1).view(torch.uint8)
        return ["U", self.add(path, "U8", flat, 1), dtype, shape]

    def shard(self, value: Shard, path: tuple[Any, ...]) -> Tree:
        data = value.data
        one = self.array if isinstance(data, np.ndarray) else self.tensor
        return ["S", one(data, path, value), value.shape, value.offsets]

    def add(
        self, path: tuple[Any, ...], dtype: str, source: Any, itemsize: int, shard: Shard | None = None
    ) -> str | None:
        shape = tuple(source.shape)
        elements = math.prod(shape)
        if shard is not None and not elements:
            return None
        name = ".".join(str(key) for key in path) or "state"
        if shard is None:
            name += self.suffix
        name, first = name.encode(errors="backslashreplace").decode(), name
        count = 1
        while name in self.names:
            count += 1
            name = f"{first}#{count}"
        self.names.add(name)
        offsets = shard.offsets if shard is not None else (0,) * len(shape)
        self.blocks.append(Block(name, dtype, shape, offsets, itemsize, elements * itemsize, source))
        return name


def _number(value: int | float | str) -> Tree:
    """Return the number as JSON expresses it; numbers that JSON lacks as text."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < 1 << 63 else ["i", str(int(value))]
    return float(value) if math.isfinite(value) else ["f", repr(float(value))]


def _shown(path: Sequence[Any]) -> str:
    return "snapshot()" + "".join(f"[{key!r}]" for key in path)


class BlockLayout:
    """Places of a state's blocks in a file. It stays the same while names, dtypes, shapes and offsets do."""

    __slots__ = ("_tail", "data", "key", "reserved", "size", "starts")

    def __init__(self, key: tuple[Any, ...], blocks: Sequence[Block], head: int) -> None:
        """`head`: the present size of step, log and tree in bytes. Some spare room is added."""
        self.key = key
        table, at = {}, 0
        self.starts: list[int] = []
        for block in blocks:
            table[block.name] = {"dtype": block.dtype, "shape": block.shape, "data_offsets": (at, at + block.nbytes)}
            self.starts.append(at)
            at += block.nbytes
        sharding = json.dumps({block.name: {"saved_offsets": block.offsets} for block in blocks})
        metadata = {"DCP_SHARDING_INFO": sharding, "DCP_VERSION": "1.0", "format": "pt"}
        # One object: metadata without its brace, and tensors without theirs.
        self._tail = (f",{json.dumps(metadata)[1:]}" + (f",{json.dumps(table)[1:]}" if table else "}")).encode()
        needed = _LENGTH.size + len(self._tail) + head + head // 8 + 512
        self.data = -(-needed // ALIGNMENT) * ALIGNMENT
        """Position of the first block."""
        self.size = self.data + at
        self.reserved = self.data - _LENGTH.size - len(self._tail)

    @staticmethod
    def key_of(blocks: Sequence[Block]) -> tuple[Any, ...]:
        """Return the key whose equality means that a layout fits."""
        return tuple([block[:6] for block in blocks])

    @staticmethod
    def head(record: Mapping[str, Any]) -> bytes:
        """Return the beginning of the header, with `record` as its entry ``rolemesh``."""
        try:
            text = msgspec.json.encode(record).decode()
        except (UnicodeEncodeError, OverflowError):
            text = json.dumps(record)
        return b'{"__metadata__":{"rolemesh":' + msgspec.json.encode(text)

    def header(self, head: bytes) -> bytes:
        """Return everything before the first block. `head` must fit into `reserved`."""
        text = head + self._tail
        return _LENGTH.pack(self.data - _LENGTH.size) + text.ljust(self.data - _LENGTH.size)
