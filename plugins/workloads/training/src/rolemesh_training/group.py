"""The ranks of the trainer as a group: how it meets, and its collectives on counters (those on parameters are
FSDP's)."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import rolemesh_torch
from rolemesh.api.workload import RankContext

__all__ = ["Group", "join"]

_ROOM = 4096
"""Bytes of a pickled value that `Group.gather` moves in one collective. The metrics of all ranks in an update are
smaller."""
_LENGTH = 8


@dataclass(frozen=True)
class Group:
    """Collectives over Python values. A group of one rank sends nothing."""

    rank: int
    size: int

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
        dist.all_gather(cells, cell)
        found = [bytes(each.numpy()) for each in cells]
        if all(int.from_bytes(each[:_LENGTH], "little") <= _ROOM for each in found):
            return [pickle.loads(each[_LENGTH:]) for each in found]  # which ends where the value does
        whole: list[Any] = [None] * self.size
        dist.all_gather_object(whole, value)
        return whole

    @staticmethod
    def _reduce(values: Sequence[float], dtype: torch.dtype, op: Any) -> list[Any]:
        cells = torch.tensor(values, dtype=dtype)
        dist.all_reduce(cells, op)
        return cells.tolist()


def join(ctx: RankContext, timeout_s: float, *, needed: bool) -> Group:
    """Join the process group of the role; a role of one rank joins only if the group is `needed`.

    CPU tensors travel over gloo, which carries the counters of GPU ranks too; CUDA tensors travel over NCCL.
    """
    if ctx.world_size > 1 or needed:
        rolemesh_torch.join(ctx, timeout_s=timeout_s)
    return Group(ctx.rank, ctx.world_size)
