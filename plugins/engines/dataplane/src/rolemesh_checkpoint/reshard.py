"""Join the states of all ranks of a role, and divide them for another world size.

A `Shard` has the place of its block, so any block can be filled from any others. For a `Gathered` entry a new rank gets
all shards, whole. Every other value belongs to the rank that stored it: it is passed on only if all ranks stored the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from rolemesh.api.batch import Batch, Gathered, Shard
from rolemesh.api.workload import State
from rolemesh_checkpoint.layout import SnapshotError
from rolemesh_runtime.digest import digest

__all__ = ["elsewhere", "merge", "owned", "reshard"]

UNLIKE = "the states of the ranks cannot be joined; use an earlier snapshot"
_LEFT_OUT = object()


def merge(states: Sequence[State]) -> dict[str, Any]:
    """Return every shard as a whole array, and the values that are equal in all `states`.

    Raises `SnapshotError` if shards do not make a whole.
    """
    return dict(_join(list(states), None, "snapshot()"))


def reshard(states: Sequence[State], template: State) -> dict[str, Any]:
    """Return the state of a rank of another world size.

    `template` is the workload's `snapshot` after `setup`: its shards name the blocks that the rank holds. Raises
    `SnapshotError` if they cannot be filled, or if there are shards that `template` does not have.
    """
    return dict(_join(list(states), template, "snapshot()"))


def elsewhere(state: Any, template: Callable[[], Any]) -> bool:
    """Return whether a shard of `state` is another block of the same tensor than the shard of the same name in
    `template()`, which is called only if there are shards."""
    return _has_shards(state) and _moved(state, template())


def _moved(state: Any, template: Any) -> bool:
    if isinstance(state, Shard) and isinstance(template, Shard):
        same = (state.offsets, tuple(state.data.shape)) == (template.offsets, tuple(template.data.shape))
        return state.shape == template.shape and not same
    if isinstance(state, Mapping) and isinstance(template, Mapping):
        return any(_moved(value, template[name]) for name, value in state.items() if name in template)
    lists = isinstance(state, (list, tuple)) and isinstance(template, (list, tuple))
    return lists and any(map(_moved, state, template))


def owned(states: Sequence[State], *, alone: bool) -> str:
    """Return the first entry of ranks' states that belongs to its rank, so the role cannot have another number of
    ranks; "" if there is none.

    Shards can always be divided. If ranks work `alone`, all other entries belong to them. A group that has shards may
    drop entries on which its ranks disagree, as at a resume; a group without shards must agree on all.
    """
    if not alone and all(map(_has_shards, states)):
        return ""
    return next(_owned(list(states), "snapshot()", alone=alone), "")


def _owned(values: list[Any], path: str, *, alone: bool) -> Iterator[str]:
    first = values[0]
    if all(isinstance(value, Shard) for value in values):
        return
    if isinstance(first, Mapping) and not isinstance(first, Batch) and all(isinstance(v, Mapping) for v in values):
        for key in dict.fromkeys(key for value in values for key in value):
            held = [value[key] for value in values if key in value]
            if len(held) < len(values) and not isinstance(held[0], Shard):
                yield f"{path}[{key!r}]"
            else:
                yield from _owned(held, f"{path}[{key!r}]", alone=alone)
    elif isinstance(first, (list, tuple)) and _has_shards(first) and len({len(value) for value in values}) == 1:
        for index, each in enumerate(zip(*values, strict=True)):
            yield from _owned(list(each), f"{path}[{index}]", alone=alone)
    elif alone or not _equal(values):
        yield path


def _join(values: list[Any], template: Any, path: str) -> Any:
    """Return one value for the ranks' values. If `template` is None, arrays are whole."""
    first = values[0]
    if isinstance(first, Shard):
        return _shard(values, template, path)
    if isinstance(first, Mapping) and not isinstance(first, Batch) and all(isinstance(v, Mapping) for v in values):
        return _mapping(values, template, path)
    if isinstance(first, (list, tuple)) and all(type(v) is type(first) and len(v) == len(first) for v in values):
        if not _has_shards(first):
            return first if _equal(values) else _LEFT_OUT
        items = []
        for index, each in enumerate(zip(*values, strict=True)):
            inner = template[index] if isinstance(template, (list, tuple)) and index < len(template) else template
            items.append(_join(list(each), inner, f"{path}[{index}]"))
        return _LEFT_OUT if any(item is _LEFT_OUT for item in items) else type(first)(items)
    return first if _equal(values) else _LEFT_OUT


def _mapping(values: list[Mapping[Any, Any]], template: Any, path: str) -> dict[Any, Any]:
    joined = {}
    for key in dict.fromkeys(key for value in values for key in value):
        held = [value[key] for value in values if key in value]
        if len(held) < len(values) and not isinstance(held[0], Shard):
            continue
        inner = (
            None
            if template is None or isinstance(template, Gathered)
            else template.get(key, {})
            if isinstance(template, Mapping)
            else {}
        )
        item = _join(held, inner, f"{path}[{key!r}]")
        if item is not _LEFT_OUT:
            joined[key] = item
    return joined


def _has_shards(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_shards, value.values()))
    return isinstance(value, Shard) or (isinstance(value, (list, tuple)) and any(map(_has_shards, value)))


def _equal(values: list[Any]) -> bool:
    if len(values) == 1:
        return True
    wanted = digest({"": values[0]})
    return all(digest({"": value}) == wanted for value in values[1:])


def _shard(values: list[Any], template: Any, path: str) -> Any:
    pieces = [value for value in values if isinstance(value, Shard)]
    shapes = {piece.shape for piece in pieces}
    if len(pieces) < len(values) or len(shapes) > 1:
        raise SnapshotError(f"{path} has shapes {sorted(shapes)} on different ranks", remedy=UNLIKE)
    shape = pieces[0].shape
    if template is None:
        return _cut(pieces, shape, (0,) * len(shape), path)
    if not isinstance(template, Shard):
        raise SnapshotError(
            f"{path} is stored in shards, but is none in a new rank",
            remedy="let snapshot() give the same names right after setup() as later, or keep the world size",
        )
    if template.shape != shape:
        raise SnapshotError(
            f"{path} was of shape {shape}, and is of shape {template.shape} in a new rank",
            remedy="resume with the options that the job had",
        )
    return Shard(_cut(pieces, tuple(template.data.shape), template.offsets, path), shape, template.offsets)


def _cut(pieces: list[Shard], sizes: tuple[int, ...], offsets: tuple[int, ...], path: str) -> Any:
    """Return the block of `sizes` at `offsets`, a copy, from disjoint (or equal) pieces."""
    like = pieces[0].data
    kind = like.dtype
    if any(piece.data.dtype != kind for piece in pieces):
        raise SnapshotError(f"{path} has different dtypes on different ranks", remedy=UNLIKE)
    block = np.empty(sizes, kind) if isinstance(like, np.ndarray) else like.new_empty(sizes)
    covered = 0
    distinct = {(piece.offsets, tuple(piece.data.shape)): piece for piece in pieces}
    for (start, extent), piece in distinct.items():
        low = [max(o, p) for o, p in zip(offsets, start, strict=True)]
        high = [min(o + n, p + m) for o, n, p, m in zip(offsets, sizes, start, extent, strict=True)]
        if any(a >= b for a, b in zip(low, high, strict=True)):
            continue
        target = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, offsets, strict=True))
        source = tuple(slice(a - p, b - p) for a, b, p in zip(low, high, start, strict=True))
        block[target] = piece.data[source]
        covered += prod(b - a for a, b in zip(low, high, strict=True))
    if covered != prod(sizes):
        raise SnapshotError(
            f"the blocks of {path} cover {covered} of the {prod(sizes)} elements of the block {sizes} at {offsets}",
            remedy="snapshot() of every rank must give its own block, with its offsets in the whole",
        )
    return block
