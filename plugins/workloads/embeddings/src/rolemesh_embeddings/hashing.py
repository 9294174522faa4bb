"""Hashes of keys: their buckets, the rank of each bucket, and the values with which rows begin. Pure functions."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rolemesh.api.batch import Ragged
from rolemesh.errors import RolemeshError

__all__ = [
    "BUCKETS", "Keys", "bucket_of", "buckets_of_rank", "drawn", "drawn_bits", "firsts", "flat", "mix",
    "ranks_of_buckets", "unique",
]  # fmt: skip

BUCKETS = 256
"""Number of buckets into which keys are hashed. A bucket is what moves between ranks."""
_BUCKET_SHIFT = np.uint64(56)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

Keys = NDArray[np.int64]


def mix(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a hash of each 64-bit value: the finaliser of SplitMix64 (Steele et al. 2014)."""
    x = values.view(np.uint64) if values.dtype.itemsize == 8 else values.astype(np.uint64)
    x = x + _GOLDEN
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def bucket_of(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the bucket of each hash, 0 to `BUCKETS` - 1."""
    return (hashes >> _BUCKET_SHIFT).astype(np.int64)


def _rank_of_bucket(bucket: int, ranks: int) -> int:
    """Return the rank that has a bucket.

    Jump consistent hash (Lamping and Veach 2014, arXiv:1406.2294): of n + 1 ranks the last one gets its 1/(n + 1) of
    the buckets from the others, and no other bucket moves.
    """
    key = int(mix(np.array([bucket], np.int64))[0])
    found, jump = -1, 0
    while jump < ranks:
        found = jump
        key = (key * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        jump = int((found + 1) * ((1 << 31) / ((key >> 33) + 1)))
    return found


@cache
def ranks_of_buckets(ranks: int) -> NDArray[np.int64]:
    """Return int64 (`BUCKETS`,): the rank that has each bucket."""
    return np.array([_rank_of_bucket(bucket, ranks) for bucket in range(BUCKETS)])


def buckets_of_rank(rank: int, ranks: int) -> NDArray[np.bool_]:
    """Return bool (`BUCKETS`,): which buckets the rank has."""
    mine: NDArray[np.bool_] = ranks_of_buckets(ranks) == rank
    return mine


def flat(keys: Any) -> Keys:
    """Return the keys of an array of any shape, or of a `Ragged`, as int64 (keys,). Unsigned ones wrap around.

    Raises `RolemeshError` for values that are no integers.
    """
    found = np.asarray(keys.values if isinstance(keys, Ragged) else keys)
    if found.size and found.dtype.kind not in "iu":
        raise RolemeshError(
            f"values of type {found.dtype} are no keys",
            remedy="use integers of at most 64 bits, such as hashes of texts",
        )
    return found.astype(np.int64, copy=False).reshape(-1)


def firsts(ordered: Keys) -> NDArray[np.bool_]:
    """Return which of the sorted keys differ from the one before."""
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return first


def unique(keys: NDArray[Any]) -> Keys:
    """Return the different keys of an array of any shape, ascending; the array itself if it has them so."""
    ordered = flat(keys)
    if not (ordered[1:] > ordered[:-1]).all():
        ordered = np.sort(ordered)
        ordered = ordered[firsts(ordered)]
    return ordered


def drawn(
    keys: Keys, dim: int, seed: int, kind: Literal["uniform", "normal", "zeros"], scale: float
) -> NDArray[np.float32]:
    """Return float32 (keys, `dim`): values that depend on seed, key and place only.

    uniform: between -`scale` and `scale`; normal: with mean 0 and standard deviation `scale` (Box and Muller 1958).
    Each is a hash of key and place, as in a counter-based generator (Salmon et al. 2011).
    """
    if kind == "zeros" or not len(keys):
        return np.zeros((len(keys), dim), np.float32)
    bits = _hashes(keys, dim, seed)
    if kind == "uniform":
        share = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2**-23)
        return (share - np.float32(1)) * np.float32(scale)
    radius = np.sqrt(-2 * np.log(((bits >> np.uint64(32)).astype(np.float64) + 0.5) * 2**-32))
    angle = (bits & np.uint64(0xFFFFFFFF)).astype(np.float64) * (2 * np.pi * 2**-32)
    return (radius * np.cos(angle) * scale).astype(np.float32)


def drawn_bits(keys: Keys, dim: int, seed: int) -> NDArray[np.uint16]:
    """Return uint16 (keys, `dim`): 16 random bits for each place, which depend on seed, key and place only."""
    return _hashes(keys, -(-dim // 4), seed).view(np.uint16)[:, :dim]


def _hashes(keys: Keys, dim: int, seed: int) -> NDArray[np.uint64]:
    begin = mix(keys.view(np.uint64) ^ mix(np.array([seed], np.int64)))
    places = (np.arange(1, dim + 1, dtype=np.uint64) * _GOLDEN)[None, :]
    return mix(begin[:, None] + places)
