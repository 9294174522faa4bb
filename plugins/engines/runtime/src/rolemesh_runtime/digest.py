"""A canonical sha256 of a rank's state: equal for equal names, types, shapes and bytes, whatever
the order of insertion."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from rolemesh.api.batch import Batch, Ragged, Shard


def digest(state: Mapping[str, Any]) -> str:
    """Return the hex digest of numpy arrays, torch tensors (of a DTensor the local block), scalars,
    bytes, and nested containers of them.

    Raises `TypeError`, with the path to the value, for anything else, because it has no canonical
    bytes.
    """
    sha = hashlib.sha256()
    _feed(sha, state, "state")
    return sha.hexdigest()


def _feed(sha: Any, value: Any, path: str) -> None:
    torch = sys.modules.get("torch")
    if value is None or isinstance(value, (bool, int, float, str)):
        sha.update(f"{type(value).__name__}:{len(repr(value))}:{value!r};".encode())
    elif isinstance(value, (bytes, bytearray, memoryview)):
        sha.update(f"bytes:{len(value)}:".encode())
        sha.update(value)
    elif isinstance(value, (np.ndarray, np.generic)):
        array = np.ascontiguousarray(value).reshape(np.shape(value))
        if array.dtype.hasobject:
            raise TypeError(f"{path} is an array of objects, which has no canonical bytes; store arrays of numbers")
        sha.update(f"array:{array.dtype.str}:{array.shape}:".encode())
        if array.size:
            sha.update(array.reshape(-1).view(np.uint8).data)
    elif torch is not None and isinstance(value, torch.Tensor):
        local = value.to_local() if hasattr(value, "to_local") else value
        flat = local.detach().cpu().contiguous()
        sha.update(f"tensor:{str(flat.dtype).removeprefix('torch.')}:{tuple(flat.shape)}:".encode())
        if flat.numel():
            sha.update(flat.reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, Shard):
        sha.update(f"shard:{value.shape}:{value.offsets}:".encode())
        _feed(sha, value.data, path)
    elif isinstance(value, Ragged):
        sha.update(b"ragged:")
        _feed(sha, value.values, path)
        _feed(sha, value.offsets, path)
    elif isinstance(value, Mapping):
        sha.update(f"{'batch' if isinstance(value, Batch) else 'map'}:{len(value)}:".encode())
        for key in sorted(value, key=lambda key: (type(key).__name__, key)):
            _feed(sha, key, path)
            _feed(sha, value[key], f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        sha.update(f"{type(value).__name__}:{len(value)}:".encode())
        for index, item in enumerate(value):
            _feed(sha, item, f"{path}[{index}]")
    else:
        raise TypeError(f"{path} is a {type(value).__qualname__}, which has no canonical bytes; store arrays or bytes")
