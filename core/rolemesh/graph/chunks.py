"""Chunks of one value, put together again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rolemesh.api.batch import Shards, concat


def check_returned(values: Iterable[Any]) -> None:
    """Raise `TypeError` for None among what an operator returned, or yielded, for somebody who waits for it."""
    if any(value is None for value in values):
        raise TypeError("it returned None, but another operator takes its value; return it, or leave the call out")


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
