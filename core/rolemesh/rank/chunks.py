"""Chunks of one value, put together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rolemesh.batch import Shards, concat

__all__ = ["join_chunks"]


def join_chunks(chunks: Sequence[Any]) -> Any:
    """The value that was yielded in `chunks`: rows one after the other, named tensors side by side.

    Raises `TypeError` for values without parts, `ValueError` for none at all or for a tensor that comes twice.
    """
    if len(chunks) == 1:
        return chunks[0]
    first = chunks[0] if chunks else None
    if isinstance(first, dict):
        joined: dict[str, Any] = Shards() if isinstance(first, Shards) else {}
        for chunk in chunks:
            if twice := joined.keys() & chunk.keys():
                raise ValueError(f"{sorted(twice)} came in two chunks of one value")
            joined.update(chunk)
        return joined
    return concat(chunks)
