"""The ranks of the trainer as a group: how it meets, and its collectives on counters (those on parameters are
FSDP's)."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import rolemesh_torch
from rolemesh.api.workload import RankContext
from rolemesh.errors import RolemeshError

__all__ = ["Group", "Ranks", "join"]

_ROOM = 4096
"""Bytes of a pickled value that `Group.gather` moves in one collective. The metrics of all ranks in an update are
smaller."""
_LENGTH = 8


@dataclass(frozen=True)
class Group:
    """Collectives over Python values. A group of one rank sends nothing."""

    rank: int
    size: int
    process_group: Any = None
    """torch's group; None: that of all ranks."""

    def sum(self, value: float) -> float:
        """Return the float64 sum over the ranks."""
        return self.sums(value)[0]

    def sums(self, *values: float) -> list[float]:
        """Return the float64 sum over the ranks of each value, in one collective."""
        return list(values) if self.size == 1 else self._reduce(values, torch.float64, dist.ReduceOp.SUM)

    def max(self, value: int) -> int:
        return value if self.size == 1 else self._reduce([value], torch.int64, dist.ReduceOp.MAX)[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the picklable `value` of each rank, in rank order, on every rank.

        Small values take one collective. torch's own function would exchange the sizes first, and each exchange waits
        for all ranks.
        """
        if self.size == 1:
            return [value]
        packed = pickle.dumps(value)
        sent = bytearray((len(packed).to_bytes(_LENGTH, "little") + packed)[: _LENGTH + _ROOM])
        cell = torch.zeros(_LENGTH + _ROOM, dtype=torch.uint8)
        cell[: len(sent)] = torch.frombuffer(sent, dtype=torch.uint8)
        cells = [torch.empty_like(cell) for _ in range(self.size)]
        dist.all_gather(cells, cell, self.process_group)
        found = [bytes(each.numpy()) for each in cells]
        if all(int.from_bytes(each[:_LENGTH], "little") <= _ROOM for each in found):
            return [pickle.loads(each[_LENGTH:]) for each in found]  # which ends where the value does
        whole: list[Any] = [None] * self.size
        dist.all_gather_object(whole, value, self.process_group)
        return whole

    def _reduce(self, values: Sequence[float], dtype: torch.dtype, op: Any) -> list[Any]:
        cells = torch.tensor(values, dtype=dtype)
        dist.all_reduce(cells, op, self.process_group)
        return cells.tolist()


class Ranks(NamedTuple):
    """The groups of a rank. Consecutive ranks divide the layers of a model (tensor parallel), and take the same
    rows."""

    every: Group
    """All ranks of the role."""
    data: Group
    """One rank of each set that divides a model. They take different rows."""
    tensor: Group
    """The ranks that divide a model with this one, which take its rows."""
    mesh: DeviceMesh | None
    """The dimensions ``data`` and ``tensor``; None if no rank divides layers."""


def join(ctx: RankContext, timeout_s: float, *, needed: bool, parallel: int = 1, device: str = "cpu") -> Ranks:
    """Join the process group of the role; a role of one rank joins only if the group is `needed`. `parallel` ranks
    divide a model.

    CPU tensors travel over gloo, which carries the counters of GPU ranks too; CUDA tensors travel over NCCL.
    """
    if ctx.world_size % parallel:
        raise RolemeshError(
            f"the {ctx.world_size} ranks of role {ctx.role} cannot form sets of tensor_parallel {parallel}",
            remedy=f"give the role a multiple of {parallel} ranks",
        )
    if ctx.world_size > 1 or needed:
        rolemesh_torch.join(ctx, timeout_s=timeout_s)
    every = Group(ctx.rank, ctx.world_size)
    if parallel == 1:
        return Ranks(every, every, Group(0, 1), None)
    places = torch.arange(ctx.world_size).view(-1, parallel)
    groups = []
    for sets in (places.T.tolist(), places.tolist()):
        made = [dist.new_group(ranks, timeout=timedelta(seconds=timeout_s)) for ranks in sets]
        groups.append(next(group for group, ranks in zip(made, sets, strict=True) if ctx.rank in ranks))
    mesh = DeviceMesh.from_group(groups, device, places, mesh_dim_names=("data", "tensor"))
    row, column = divmod(ctx.rank, parallel)
    return Ranks(every, Group(row, len(places), groups[0]), Group(column, parallel, groups[1]), mesh)
