"""The difference between two versions of a value's buffers, without loss: pure functions on bytes."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import xxhash
import zstandard

__all__ = ["Broken", "Bytes", "Difference", "apply", "difference"]

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"

ALL: Final = 4
"""A buffer is sent whole if more than a quarter of its elements have changed."""
BLOCK: Final = 1 << 20
"""Elements that are compared at once, so that the results stay in the processor's cache."""
_WIDTHS = {"float64": 8, "int64": 8, "uint64": 8, "float32": 4, "int32": 4, "uint32": 4}
_WIDTHS |= {"bfloat16": 2, "float16": 2, "int16": 2, "uint16": 2}


class Broken(Exception):
    """A difference does not belong to the version that it meets, or has changed on its way."""


class Difference(msgspec.Struct, frozen=True, array_like=True):
    """The changes in one buffer: the elements' gaps and the bits that differ, compressed; or all of it.

    `width`: bytes of an element; 0: `changed` has the whole buffer. `gap`: bytes of a gap. `count`: changed elements.
    `digest`: xxh3 of the new buffer, with a seed that tells values and buffers apart.
    """

    size: int
    width: int
    gap: int
    count: int
    digest: int
    gaps: bytes
    changed: bytes


def difference(old: Bytes, new: Bytes, dtype: str, level: int, seed: int = 0) -> Difference:
    """Return what makes `new` of `old`, and make `old` equal to `new`. Both have the same size.

    `apply` refuses the difference with another `seed`.
    """
    width = _WIDTHS.get(dtype, 1)
    if len(new) % width:
        width = 1
    kind = np.dtype(f"u{width}")
    was, now = old.view(kind), new.view(kind)
    found = []
    for at in range(0, len(now), BLOCK):
        there = np.flatnonzero(was[at : at + BLOCK] != now[at : at + BLOCK])
        if len(there):
            found.append(there + at)
    index = np.concatenate(found) if found else np.empty(0, np.int64)
    compress = zstandard.ZstdCompressor(level=level).compress
    if len(index) * ALL > len(now):
        np.copyto(old, new)
        return Difference(len(new), 0, 0, 0, _digest(old, seed), b"", compress(new.data))
    gaps = np.diff(index, prepend=-1) - 1
    gap = next(size for size in (1, 2, 4, 8) if not len(gaps) or gaps.max() < 1 << (8 * size))
    bits = was[index] ^ now[index]
    was[index] = now[index]
    return Difference(
        len(new),
        width,
        gap,
        len(index),
        _digest(old, seed),
        compress(gaps.astype(f"<u{gap}").tobytes()),
        compress(_planes(bits.view(np.uint8), width)),
    )


def apply(old: Bytes, change: Difference, seed: int = 0) -> None:
    """Make the old version of a buffer the new one. Raises `Broken`; then `old` has undefined content."""
    try:
        _apply(old, change)
    except (ValueError, IndexError, zstandard.ZstdError, MemoryError) as error:
        raise Broken(f"it cannot be read: {error}") from error
    if _digest(old, seed) != change.digest:
        raise Broken("its checksum differs")


def _apply(old: Bytes, change: Difference) -> None:
    if len(old) != change.size:
        raise ValueError(f"it is of {change.size} bytes, and the version here of {len(old)}")
    if not change.width:
        np.copyto(old, np.frombuffer(_unpacked(change.changed, change.size), np.uint8))
        return
    if change.width not in (1, 2, 4, 8) or change.gap not in (1, 2, 4, 8) or not 0 <= change.count <= len(old):
        raise ValueError("its sizes are none that a sender writes")
    now = old.view(f"u{change.width}")
    gaps = np.frombuffer(_unpacked(change.gaps, change.count * change.gap), f"<u{change.gap}")
    index = np.cumsum(gaps.astype(np.int64) + 1) - 1
    if len(index) and not 0 <= index[-1] < len(now):
        raise ValueError("it changes elements behind the end")
    planes = np.frombuffer(_unpacked(change.changed, change.count * change.width), np.uint8)
    bits = np.ascontiguousarray(planes.reshape(change.width, -1).T).reshape(-1).view(now.dtype)
    now[index] ^= bits


def _planes(data: Bytes, width: int) -> bytes:
    """Return the first bytes of all elements, then all second bytes, and so on: like bytes compress better together."""
    return np.ascontiguousarray(data.reshape(-1, width).T).tobytes()


def _unpacked(data: bytes, size: int) -> bytes:
    if (told := zstandard.frame_content_size(data)) != size:
        raise ValueError(f"{told} bytes where {size} belong")
    return zstandard.ZstdDecompressor().decompress(data)


def _digest(data: Bytes, seed: int) -> int:
    return int(xxhash.xxh3_64_intdigest(data.data, seed))
