"""Gradients summed over ranks, in buckets, while the backward pass goes on.

torch's DistributedDataParallel chooses its buckets after the first step again, by the order in which gradients came:
a group that was started again would add up in another order, and needs a forward and backward pass of every rank.
Here the buckets are the same in each life of a group, and a rank without rows gives zeros.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["Reducer"]


class _Bucket:
    def __init__(self) -> None:
        self.parameters: list[torch.Tensor] = []
        self.waiting = 0
        self.flat: torch.Tensor | None = None
        self.work: Any = None


class Reducer:
    """Sums `grad` of each parameter over the ranks: `begin` before the last backward pass, `flush` after it, `wait`."""

    def __init__(self, parameters: Iterable[torch.Tensor], bucket_bytes: float) -> None:
        """Buckets hold parameters of one dtype from the last to the first: about the order in which gradients come."""
        self._buckets: list[_Bucket] = []
        self._of: dict[int, _Bucket] = {}
        self._begun = False
        self._launched = 0
        size = 0.0
        for parameter in reversed(list(parameters)):
            last = self._buckets[-1] if self._buckets else None
            own = parameter.numel() * parameter.element_size()
            if last is None or size + own > bucket_bytes or last.parameters[-1].dtype != parameter.dtype:
                last, size = _Bucket(), 0.0
                self._buckets.append(last)
            last.parameters.append(parameter)
            size += own
            self._of[id(parameter)] = last
            parameter.register_post_accumulate_grad_hook(self._ready)

    def begin(self) -> None:
        """The next backward pass is this rank's last one of the update: a bucket goes out once it is full."""
        self._begun = True
        for bucket in self._buckets:
            bucket.waiting = len(bucket.parameters)

    def flush(self) -> None:
        """Send what is left; parameters without a gradient give zeros. Nothing else may be sent before: ranks without
        rows have sent nothing yet, and all must send in one order."""
        while self._launched < len(self._buckets):
            self._launch()
        self._begun, self._launched = False, 0

    def wait(self) -> None:
        """Each parameter's `grad` is the sum, if anything has been sent since the last time."""
        for bucket in self._buckets:
            if bucket.flat is None:
                continue
            bucket.work.wait()
            at = 0
            for parameter in bucket.parameters:
                parameter.grad = bucket.flat[at : at + parameter.numel()].view_as(parameter)
                at += parameter.numel()
            bucket.flat = bucket.work = None

    def _ready(self, parameter: torch.Tensor) -> None:
        if not self._begun:
            return
        bucket = self._of[id(parameter)]
        bucket.waiting -= 1
        # In one order on all ranks, whatever the order of their gradients.
        while self._launched < len(self._buckets) and self._buckets[self._launched].waiting == 0:
            self._launch()

    def _launch(self) -> None:
        bucket = self._buckets[self._launched]
        pieces = [
            p.grad.reshape(-1) if p.grad is not None else torch.zeros(p.numel(), dtype=p.dtype, device=p.device)
            for p in bucket.parameters
        ]
        bucket.flat = torch.cat(pieces)
        for parameter in bucket.parameters:
            parameter.grad = None
        bucket.work = dist.all_reduce(bucket.flat, async_op=True)
        self._launched += 1
