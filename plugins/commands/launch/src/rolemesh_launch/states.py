"""Convert between ``state_dict`` and a snapshot whose tensors can be divided among another number of ranks.

A DTensor becomes a `Shard`. The states of a process's random generators become a row of an array that has one row per
rank.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from rolemesh.api.batch import Shard

__all__ = ["Blocks", "generators", "set_generators"]


class Blocks:
    """The block of a DTensor that this rank has, computed once for each layout of tensors."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def of(self, tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return shape and offsets."""
        key = (tensor.shape, tensor.device_mesh, tensor.placements)
        if key not in self._known:
            from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

            shape, offsets = compute_local_shape_and_global_offset(*key)
            self._known[key] = tuple(shape), tuple(offsets)
        return self._known[key]

    def store(self, value: Any) -> Any:
        """Return a ``state_dict`` as a part of a snapshot. Nothing is copied, and DTensors become `Shard`."""
        if _is_dtensor(value):
            local, (_, offsets) = value.to_local().detach(), self.of(value)
            return Shard(local, tuple(value.shape), offsets)
        if isinstance(value, Mapping):
            return {key: self.store(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            items = [self.store(item) for item in value]
            return tuple(items) if isinstance(value, tuple) else items
        return value

    def load(self, owner: Any, state: Any) -> None:
        """Let `owner` load what `store` made of its ``state_dict``, at the same world size or, with whole tensors, at
        another."""
        torch = sys.modules.get("torch")
        fresh, params = owner.state_dict(), {}
        module = torch is not None and isinstance(owner, torch.nn.Module)  # it copies what it loads
        if torch is not None and isinstance(owner, torch.optim.Optimizer):
            every = [p for group in owner.param_groups for p in group["params"]]
            params = {number: dict.fromkeys(state["state"].get(number, ()), p) for number, p in enumerate(every)}
            fresh = {**fresh, "state": params}
        owner.load_state_dict(self._back(state, fresh, copied=module))

    def _back(self, value: Any, like: Any, *, copied: bool) -> Any:
        """Return `value` in its original form. `like` has DTensors in the same places."""
        if isinstance(value, Shard) or hasattr(value, "untyped_storage"):
            return self._tensor(value, like, copied=copied)
        if isinstance(value, Mapping):
            inner = like if isinstance(like, Mapping) else {}
            return {key: self._back(item, inner.get(key), copied=copied) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            items = like if isinstance(like, (list, tuple)) and len(like) == len(value) else [None] * len(value)
            back = [self._back(item, other, copied=copied) for item, other in zip(value, items, strict=True)]
            return tuple(back) if isinstance(value, tuple) else back
        return value.copy() if isinstance(value, np.ndarray) else value

    def _tensor(self, value: Any, like: Any, *, copied: bool) -> Any:
        part = isinstance(value, Shard)
        block = value.data if part else value
        if not _is_dtensor(like):
            if part:
                raise ValueError(
                    f"the snapshot has {value} where the script has a whole tensor: it shards otherwise now"
                )
            return block if copied else block.clone()
        shape, offsets = self.of(like)
        if part and (value.shape, value.offsets, tuple(block.shape)) != (tuple(like.shape), offsets, shape):
            raise ValueError(f"the snapshot has {value}, the script has {shape} at {offsets} of {tuple(like.shape)}")
        if not part and block.ndim and block.shape == like.shape:
            block = block[tuple(slice(at, at + size) for at, size in zip(offsets, shape, strict=True))]
        elif not part:  # belongs to this rank, as an optimizer's count of steps
            return block if copied else block.clone()
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(
            block if copied else block.clone(), like.device_mesh, like.placements,
            run_check=False, shape=like.shape, stride=like.stride(),
        )  # fmt: skip


def _is_dtensor(value: Any) -> bool:
    return hasattr(value, "placements") and hasattr(value, "device_mesh")


def generators(rank: int, world_size: int) -> dict[str, Shard]:
    """Return the states of the global generators of torch, numpy and ``random``, as this rank's row of each."""
    rows = {"random": _of_random()}
    kind, *numpy = cast("tuple[Any, ...]", np.random.get_state(legacy=True))
    if kind == "MT19937":
        words, at, has, cached = numpy
        rows["numpy"] = np.concatenate([words.astype(np.float64), [at, has, cached]])
    if (torch := sys.modules.get("torch")) is not None:
        rows["torch"] = torch.get_rng_state().numpy()
        if torch.cuda.is_initialized():
            rows["cuda"] = torch.cuda.get_rng_state().numpy()
    return {name: Shard(row[None], (world_size, row.size), (rank, 0)) for name, row in rows.items()}


def set_generators(found: Mapping[str, Any], rank: int) -> None:
    """Restore the states that `generators` returned. A rank that was not there before keeps its own."""
    for name, value in found.items():
        row = value.data[0] if isinstance(value, Shard) else value[rank] if rank < len(value) else None
        if row is None:
            continue
        if name == "random":
            gauss = None if np.isnan(row[-1]) else float(row[-1])
            random.setstate((3, tuple(int(word) for word in row[:-1]), gauss))
        elif name == "numpy":
            *words, at, has, cached = row
            np.random.set_state(("MT19937", np.array(words, np.uint32), int(at), int(has), float(cached)))
        else:
            import torch

            where = torch.cuda if name == "cuda" else torch
            where.set_rng_state(torch.from_numpy(np.array(row)))


def _of_random() -> np.ndarray[Any, Any]:
    _, words, gauss = random.getstate()
    return np.array([*words, np.nan if gauss is None else gauss], np.float64)
