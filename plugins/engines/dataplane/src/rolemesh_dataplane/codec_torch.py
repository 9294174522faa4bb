"""The part of the codec that needs torch. It is imported when a tensor is encoded or decoded, never by the kernel
itself."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from rolemesh_dataplane.transports import TransportError

COPIED = 1 << 20
"""Maximum bytes of a tensor that is copied on read, so that it is writable. Larger ones are views of bytes from
`rolemesh_dataplane.codec.Received.writable`, or of bytes that nobody else sees."""

with warnings.catch_warnings():
    # torch warns once per process that a buffer is read-only: those of frames are marked so, and are nobody else's
    warnings.simplefilter("ignore")
    torch.frombuffer(bytes(8), dtype=torch.uint8)


def is_plain(tensor: Any) -> bool:
    """Return whether the tensor consists of its shape, its dtype and its bytes (not sparse, not quantised).

    Raises `TransportError` for a DTensor, of which this rank has only a part.
    """
    if hasattr(tensor, "to_local"):
        raise TransportError(
            "a DTensor has no place on an edge",
            remedy="return Shards of its local block: Shard(t.to_local(), t.shape, offsets), with returns=Sharded()",
        )
    return tensor.layout is torch.strided and not tensor.is_quantized


def to_bytes(tensor: Any) -> tuple[str, tuple[int, ...], bytes | memoryview]:
    """Return the dtype's name, the shape, and the bytes: a view if the tensor is contiguous and on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    raw = flat.view(torch.uint8).numpy().data if flat.numel() else b""
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), raw


def from_bytes(name: str, shape: Sequence[int], raw: bytes | memoryview) -> Any:
    """Return the tensor. Raises `ValueError` if dtype, shape and number of bytes do not fit each other."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or len(raw) != prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(raw)} bytes for a tensor of shape {shape} and dtype {name!r}")
    if not len(raw):
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(bytearray(raw) if len(raw) <= COPIED else raw, dtype=dtype).reshape(tuple(shape))
