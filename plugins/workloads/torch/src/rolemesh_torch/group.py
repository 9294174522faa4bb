"""The process group of a collective role."""

from __future__ import annotations

import ipaddress
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rolemesh.api.workload import RankContext, Rendezvous
from rolemesh.errors import RolemeshError

__all__ = ["join"]


def join(ctx: RankContext, *, backend: str | None = None, timeout_s: float = 1800.0) -> None:
    """Make the ranks of the role the default group of `torch.distributed`. A role of one rank is a group of one.

    `backend` is gloo, with NCCL for CUDA tensors if the rank has GPUs (its first one becomes the current device). A
    collective fails after `timeout_s` seconds. Raises `ValueError` in a workload that does not declare ``group =
    "collective"``, `RolemeshError` if NCCL would connect two ranks on one GPU, and torch's errors if the ranks do not
    meet.
    """
    if ctx.world_size > 1 and ctx.rendezvous is None:
        who = f"rank {ctx.rank} of {ctx.world_size} of role {ctx.role}"
        raise ValueError(f"{who} has nowhere to meet the others: its workload does not say group = 'collective'")
    if ctx.world_size == 1 and dist.is_initialized():
        return  # with --engine inline another role has been here: it is a group of one as well
    gpus = bool(ctx.gpus) and torch.cuda.is_available()
    if gpus:
        torch.cuda.set_device(ctx.gpus[0])
    timeout = timedelta(seconds=timeout_s)
    store: Any = dist.HashStore() if ctx.rendezvous is None else _meet(ctx.rendezvous, ctx, timeout)
    backend = backend or ("cpu:gloo,cuda:nccl" if gpus else "gloo")
    if gpus and ctx.world_size > 1 and "nccl" in backend:
        _claim(store, ctx, str(torch.cuda.get_device_properties(ctx.gpus[0]).uuid))
    dist.init_process_group(backend, store=store, rank=ctx.rank, world_size=ctx.world_size, timeout=timeout)


def _meet(where: Rendezvous, ctx: RankContext, timeout: timedelta) -> Any:
    if _is_loopback(where.address) and Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # gloo would resolve the host's name, which may fail
    first, end = ctx.rank == 0, (where.address, where.port)
    listening: dict[str, Any] = {"is_master": first, "master_listen_fd": where.listen_fd if first else None}
    store = dist.TCPStore(*end, ctx.world_size, timeout=timeout, wait_for_workers=False, **listening)
    return dist.PrefixStore(str(where.generation), store)


def _claim(store: Any, ctx: RankContext, device: str) -> None:
    """Reserve `device` for this rank. NCCL would refuse a second rank only much later, in a message that names
    neither."""
    first = int(store.compare_set(f"device/{device}", "", str(ctx.rank)))
    if first != ctx.rank:
        raise RolemeshError(
            f"ranks {first} and {ctx.rank} of role {ctx.role} share the GPU {device}; NCCL needs one for each rank",
            remedy=f"set roles.{ctx.role}.resources.gpu to 1, or roles.{ctx.role}.world_size to the number of GPUs",
        )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
