"""Apply the selections and combinations of a `Route` to values: the part that leaves a producer,
and the value that a consumer gets.

The results are views if possible. Arrays may be numpy's or torch's; torch is not imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

import numpy as np

from rolemesh.api.batch import Batch, Ragged, Shard, Shards, concat
from rolemesh.graph import routes
from rolemesh_runtime import items
from rolemesh_runtime.breaches import breach, refusing

Box: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes of a block."""


@refusing
def select(value: Any, selection: routes.Selection) -> Any:
    """Return the part of a producer rank's `value` that `selection` names, as a view.

    Raises a `breach` for a value that has no such parts.
    """
    match selection:
        case routes.Whole():
            return value
        case routes.Part():
            return _slice(value, selection)
        case routes.Block():
            return _block(value, selection)
        case routes.Share():
            return items.cut(value, selection)


def gather(chunks: Sequence[Sequence[Any]], how: routes.Combine) -> Any:
    """Return the value that a consumer rank gets from the chunks of each of its sources.

    Raises a `breach` as `combine` does, and `ValueError` if items are missing.
    """
    if isinstance(how, routes.Collate):
        if (whole := items.assembled(item for part in chunks for item in part)) is None:
            raise ValueError("items are missing")
        return whole
    return combine([join_chunks(part) for part in chunks], how)


@refusing
def combine(parts: Sequence[Any], how: routes.Combine) -> Any:
    """Return the value that a consumer rank gets from its parts, which are in the order of
    ``Route.sources``.

    A single part that is already the value is returned as it is. Raises a `breach` for parts that
    cannot be combined this way, or do not fit each other.
    """
    match how:
        case routes.Take():
            return parts[0]
        case routes.Concat(axis=axis):
            filled = [part for part in parts if items.extent(part, axis) != 0] or parts[:1]
            return concat(filled, axis)
        case routes.Reduce(op=op):
            return _reduce(parts, op)
        case routes.Assemble():
            return {
                name: _fill(name, shards[0].shape, shards, shards[0].data) for name, shards in _by_name(parts).items()
            }
        case routes.Pieces():
            named = _by_name([_as_shards(part) for part in parts])
            return {name: _pieces(name, shards[0].shape, shards) for name, shards in named.items()}
        case routes.Reshard(dim=dim, count=count):
            named = _by_name(parts)
            return Shards({name: _reshard(name, shards, dim, count) for name, shards in named.items()})
        case routes.Collate():
            return gather([parts], how)


# --------------------------------------------------------------------------------------------------
# chunks


def check_returned(values: Iterable[Any]) -> None:
    """Raise a `breach` if an operator returned or yielded None although a consumer waits for the
    value."""
    if any(value is None for value in values):
        raise breach("it returned None, but another operator takes its value", "return it, or leave the call out")


def check_yielded(chunks: int) -> None:
    """Raise a `breach` if an operator yielded no chunk."""
    if not chunks:
        raise breach("it yielded nothing", "yield at least one chunk, empty if there are no rows")


def check_even(param: str, chunks: int, producers: int) -> None:
    """Raise a `breach` if not all `producers` of the input `param` yielded the next chunk."""
    if chunks != producers:
        raise breach(f"producers of {param!r} yield different numbers of chunks", "yield as many on each rank")


@refusing
def join_chunks(chunks: Sequence[Any]) -> Any:
    """Return the value that was yielded in `chunks`: rows one after the other, named tensors side
    by side.

    Raises a `breach` for values without parts, or if there are no chunks or a tensor comes twice.
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


# --------------------------------------------------------------------------------------------------
# rows and axes


def _slice(value: Any, part: routes.Part) -> Any:
    if isinstance(value, Batch):
        if part.axis == 0:
            return value[slice(*part.bounds(value.rows))]
        return Batch({name: _slice(column, part) for name, column in value.items()}, rows=value.rows)
    extent = items.extent(value, part.axis)
    if extent is None:
        what = f"a {type(value).__name__} has no " + ("rows" if part.axis == 0 else f"axis {part.axis}")
        raise TypeError(f"{what} to split; return a Batch, an array or a list, or declare returns=Broadcast()")
    rows = slice(*part.bounds(extent))
    return value[(slice(None),) * part.axis + (rows,)] if part.axis else value[rows]


# --------------------------------------------------------------------------------------------------
# reductions


def _reduce(parts: Sequence[Any], op: str) -> Any:
    """Reduce the parts element by element, in order. The parts themselves are never written to."""
    first = parts[0]
    if isinstance(first, Mapping):
        for other in parts[1:]:
            if not isinstance(other, Mapping) or other.keys() != first.keys():
                raise ValueError(f"parts to reduce have different names: {_names(first)} and {_names(other)}")
        reduced = {name: _reduce([part[name] for part in parts], op) for name in first}
        return Batch(reduced, rows=first.rows) if isinstance(first, Batch) else reduced
    if isinstance(first, (str, bytes, list, tuple, Ragged)) or not hasattr(first, "__add__"):
        raise TypeError(f"a {type(first).__name__} cannot be added up; return numbers, arrays or dicts of them")
    shapes = {tuple(getattr(part, "shape", ())) for part in parts}
    if len(shapes) > 1:
        raise ValueError(f"parts to reduce have different shapes: {sorted(shapes)}")
    total = first + parts[1] if len(parts) > 1 else first
    for part in parts[2:]:
        total += part
    return total / len(parts) if op == "mean" else total


def _names(part: Any) -> Any:
    return sorted(part) if isinstance(part, Mapping) else type(part).__name__


# --------------------------------------------------------------------------------------------------
# named shards


def _block(value: Any, block: routes.Block) -> Shards:
    """Return the part of `value` in the block. Tensors outside the block remain, as empty shards at
    the block's start.

    Tensors without dimension `block.dim` are whole on every rank.
    """
    found = Shards()
    dim = block.dim
    for name, shard in _as_shards(value).items():
        if dim >= len(shard.shape):
            found[name] = shard
            continue
        low, high = routes.chunk_bounds(shard.shape[dim], block.index, block.count)
        own = shard.offsets[dim]
        start = max(low, own)
        stop = min(high, own + int(shard.data.shape[dim]))
        start, inside = (start, slice(start - own, stop - own)) if stop > start else (low, slice(0, 0))
        data = shard.data[(slice(None),) * dim + (inside,)]
        found[name] = Shard(data, shard.shape, (*shard.offsets[:dim], start, *shard.offsets[dim + 1 :]))
    return found


def _as_shards(value: Any) -> Shards:
    """Return `value` with each array as a shard that covers it."""
    if not isinstance(value, Mapping) or isinstance(value, Batch):
        raise TypeError(f"a {type(value).__name__} has no named tensors; return Shards or a dict of arrays")
    for name, item in value.items():
        if not hasattr(item, "shape"):
            raise TypeError(f"{name!r} is a {type(item).__name__}, not an array; return Shards or a dict of arrays")
    return Shards({n: a if isinstance(a, Shard) else Shard(a, a.shape, (0,) * len(a.shape)) for n, a in value.items()})


def _by_name(parts: Sequence[Any]) -> dict[str, list[Shard]]:
    """Return the shards of each name, in the order of the parts. They agree on the global shape."""
    named: dict[str, list[Shard]] = {}
    for part in parts:
        if not isinstance(part, Shards):
            raise TypeError(f"a {type(part).__name__} came where Shards were declared; return Shards")
        for name, shard in part.items():
            others = named.setdefault(name, [])
            if others and others[0].shape != shard.shape:
                raise ValueError(f"{name!r} has global shape {others[0].shape} on one rank, {shard.shape} on another")
            others.append(shard)
    return named


def _reshard(name: str, shards: Sequence[Shard], dim: int, count: int) -> Shard:
    """Join the pieces of one chunk. The pieces themselves say which chunk it is."""
    shape = shards[0].shape
    if dim >= len(shape):
        return Shard(_fill(name, shape, shards, shards[0].data), shape, (0,) * len(shape))
    filled = [shard for shard in shards if prod(shard.data.shape)]
    size = max(1, -(-shape[dim] // count))
    start = min(shard.offsets[dim] for shard in filled or shards[:1])
    start = start if start == shape[dim] else start // size * size
    sizes = (*shape[:dim], min(size, shape[dim] - start), *shape[dim + 1 :])
    offsets = (*(0,) * dim, start, *(0,) * (len(shape) - dim - 1))
    inside = [Shard(s.data, sizes, tuple(o - b for o, b in zip(s.offsets, offsets, strict=True))) for s in filled]
    return Shard(_fill(name, sizes, inside, shards[0].data), shape, offsets)


def _fill(name: str, shape: tuple[int, ...], shards: Sequence[Shard], like: Any) -> Any:
    """Return the array of `shape` that `shards` cover exactly, of the type of `like`; without a
    copy if one shard is all of it."""
    pieces = _pieces(name, shape, shards)
    if len(pieces) == 1:
        return pieces[0].data
    array = np.empty(shape, like.dtype) if isinstance(like, np.ndarray) else like.new_empty(shape)
    for piece in pieces:
        piece.into(array)
    return array


def _pieces(name: str, shape: tuple[int, ...], shards: Sequence[Shard]) -> list[Shard]:
    """Return those of `shards` that cover the array of `shape` exactly; a single one if it is all
    of it."""
    if whole := [shard for shard in shards if tuple(shard.data.shape) == shape]:
        return whole[:1]
    blocks = {(shard.offsets, tuple(shard.data.shape)): shard for shard in shards if prod(shard.data.shape)}
    if problem := _uncovered(shape, tuple(sorted(blocks))):
        raise ValueError(f"{name!r}: {problem}; every rank must return its own block with the right offsets")
    return list(blocks.values())


@lru_cache(maxsize=4096)
def _uncovered(shape: tuple[int, ...], blocks: tuple[Box, ...]) -> str | None:
    """Return why `blocks` (sorted) do not tile `shape`, or None if they do. The result is cached,
    because layouts repeat in every step."""
    volume = prod(shape)
    covered = sum(prod(sizes) for _, sizes in blocks)
    if volume and not blocks:
        return f"no rank has the block of shape {shape}"
    if covered != volume:
        return f"the blocks have {covered} elements, the tensor of shape {shape} has {volume}"
    starts = np.array([offsets for offsets, _ in blocks], dtype=int).reshape(len(blocks), len(shape))
    ends = starts + np.array([sizes for _, sizes in blocks], dtype=int).reshape(starts.shape)
    before = (starts[:, None] < ends[None]).all(axis=2)
    for one, other in np.argwhere(np.triu(before & before.T, 1)):
        return f"the blocks at {blocks[one][0]} and {blocks[other][0]} overlap"
    return None
