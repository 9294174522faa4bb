"""Tensors handed to other processes of the node, some at a time, in memory that no file names. Imports torch only."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

__all__ = ["BUCKET_BYTES", "Bucket", "Placed", "in_buckets"]

BUCKET_BYTES = 64 << 20
"""How much of the weights is under way at once, if no tensor is larger."""
ALIGN = 64


class Placed(NamedTuple):
    """Where in a bucket a tensor is: `offset` in bytes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int


class Bucket(NamedTuple):
    """Some tensors, as whoever may read them is told; valid while the one that made it waits.

    `path` names the memory through the maker's descriptor (``/proc/PID/fd/N``): it takes nothing from /dev/shm, and
    nothing has to be removed.
    """

    path: str
    bytes: int
    placed: list[Placed]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors by name. They stay valid: the memory goes with the last of them. Writing to one changes no
        other process's."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            memory = mmap.mmap(fd, self.bytes, access=mmap.ACCESS_COPY)
        finally:
            os.close(fd)
        for at in self.placed:
            yield at.name, _view(memory, at)


@contextmanager
def _made(tensors: list[tuple[str, torch.Tensor]]) -> Iterator[Bucket]:
    placed, end = [], 0
    for name, tensor in tensors:
        placed.append(Placed(name, tensor.dtype, tuple(tensor.shape), end))
        end += -(-tensor.nbytes // ALIGN) * ALIGN
    size = max(end, ALIGN)
    fd = os.memfd_create("weights", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, size)  # an error here, not a SIGBUS later
        memory = mmap.mmap(fd, size)
        for at, (_, tensor) in zip(placed, tensors, strict=True):
            _view(memory, at).copy_(tensor)
        yield Bucket(f"/proc/{os.getpid()}/fd/{fd}", size, placed)
    finally:
        os.close(fd)


def in_buckets(tensors: Iterator[tuple[str, torch.Tensor]], limit: int = BUCKET_BYTES) -> Iterator[Bucket]:
    """`tensors`, in order, in buckets of `limit` bytes (more if one tensor alone has more); each is gone when the next
    is asked for. Raises `OSError` where memory does not suffice."""
    some: list[tuple[str, torch.Tensor]] = []
    for name, tensor in tensors:
        if some and sum(t.nbytes for _, t in some) + tensor.nbytes > limit:
            with _made(some) as bucket:
                some = []
                yield bucket
        some.append((name, tensor))
    if some:
        with _made(some) as bucket:
            yield bucket


def _view(memory: mmap.mmap, at: Placed) -> torch.Tensor:
    count = math.prod(at.shape)
    if not count:
        return torch.empty(at.shape, dtype=at.dtype)
    return torch.frombuffer(memory, dtype=at.dtype, count=count, offset=at.offset).view(at.shape)
