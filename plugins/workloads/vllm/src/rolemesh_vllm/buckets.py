"""Pass tensors to other processes of the node, some at a time, in memory without a file name. Imports torch only."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

__all__ = ["BUCKET_BYTES", "Bucket", "BucketEntry", "in_buckets"]

BUCKET_BYTES = 64 << 20
"""Maximum size in bytes of the weights that are in transfer at once, if no single tensor is larger."""
ALIGN = 64


class BucketEntry(NamedTuple):
    """Place of a tensor in a bucket. `offset` is in bytes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int


class Bucket(NamedTuple):
    """Some tensors, in the form in which their readers receive them. It is valid while its maker waits.

    `path` names the memory by the maker's descriptor (``/proc/PID/fd/N``), so it uses no space in /dev/shm and needs no
    removal.
    """

    path: str
    bytes: int
    placed: list[BucketEntry]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors by name. They stay valid: the memory is freed with the last of them. Writes are private to
        this process."""
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
        placed.append(BucketEntry(name, tensor.dtype, tuple(tensor.shape), end))
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
    """Yield `tensors`, in order, in buckets of `limit` bytes (more if a single tensor is larger). A bucket is freed
    when the next is requested. Raises `OSError` if memory does not suffice."""
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


def _view(memory: mmap.mmap, at: BucketEntry) -> torch.Tensor:
    count = math.prod(at.shape)
    if not count:
        return torch.empty(at.shape, dtype=at.dtype)
    return torch.frombuffer(memory, dtype=at.dtype, count=count, offset=at.offset).view(at.shape)
