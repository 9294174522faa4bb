"""The ranks of the trainer as one group: how it meets, and its collectives on counters (parameters are FSDP's)."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rolemesh.api.workload import RankContext, Rendezvous

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


def join(ctx: RankContext[Any], device: torch.device, timeout_s: float, *, needed: bool) -> Group:
    """Enter the process group of the role; with one rank only if it is `needed`.

    CPU tensors travel over gloo, which carries the counters on GPU ranks too; CUDA tensors over NCCL.
    """
    group = Group(ctx.rank, ctx.world_size)
    if group.size == 1 and not needed:
        return group
    timeout = timedelta(seconds=timeout_s)
    if ctx.rendezvous is None:
        if group.size > 1:
            raise ValueError(f"rank {ctx.rank} of {group.size} has no rendezvous, which collective groups are given")
        store: Any = dist.HashStore()
    else:
        store = _meet(ctx.rendezvous, group, timeout)
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=store, rank=group.rank, world_size=group.size, timeout=timeout)
    return group


def _meet(where: Rendezvous, group: Group, timeout: timedelta) -> Any:
    if _is_loopback(where.address) and Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # gloo would resolve the host's name, which may fail
    store = dist.TCPStore(
        where.address,
        where.port,
        group.size,
        is_master=group.rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=where.listen_fd if group.rank == 0 else None,
    )
    return dist.PrefixStore(str(where.generation), store)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
