"""The ranks of the trainer as one group: how it meets, and its collectives on counters (parameters are FSDP's)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import rolemesh_torch
from rolemesh.api.workload import RankContext

__all__ = ["Group", "join"]


@dataclass(frozen=True)
class Group:
    """Collectives over Python values. A group of one talks to nobody."""

    rank: int
    size: int

    def sum(self, value: float) -> float:
        """The float64 sum over the ranks."""
        return self._reduce(value, torch.float64, dist.ReduceOp.SUM)

    def max(self, value: int) -> int:
        return int(self._reduce(value, torch.int64, dist.ReduceOp.MAX))

    def gather(self, value: Any) -> list[Any]:
        """The picklable `value` of each rank, in rank order, on every rank."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def _reduce(self, value: float, dtype: torch.dtype, op: Any) -> float:
        if self.size == 1:
            return value
        cell = torch.tensor([value], dtype=dtype)
        dist.all_reduce(cell, op)
        found: float = cell.item()
        return found


def join(ctx: RankContext[Any], timeout_s: float, *, needed: bool) -> Group:
    """Enter the process group of the role; with one rank only if it is `needed`.

    CPU tensors travel over gloo, which carries the counters on GPU ranks too; CUDA tensors over NCCL.
    """
    if ctx.world_size > 1 or needed:
        rolemesh_torch.join(ctx, timeout_s=timeout_s)
    return Group(ctx.rank, ctx.world_size)
