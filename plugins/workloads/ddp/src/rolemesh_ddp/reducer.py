"""Sum gradients over ranks, in buckets, during the backward pass.

torch's DistributedDataParallel chooses its buckets again after the first step, by the order in which gradients came. A
restarted group would then sum in another order, and it needs a forward and backward pass of every rank. Here the
buckets are the same in each life of a group, and a rank without rows contributes zeros.
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
    """Sums `grad` of each parameter over the ranks: call `begin` before the last backward pass, `flush` after it, then
    `wait`."""

    def __init__(self, parameters: Iterable[torch.Tensor], bucket_bytes: float) -> None:
        """A bucket holds parameters of one dtype, from the last to the first, which is about the order in which
        gradients come."""
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
        """The next backward pass is this rank's last one of the update: send each bucket when it is full."""
        self._begun = True
        for bucket in self._buckets:
            bucket.waiting = len(bucket.parameters)

    def flush(self) -> None:
        """Send the remaining buckets; parameters without a gradient contribute zeros. Nothing else may be sent before,
        because ranks without rows have sent nothing so far, and all ranks must send in the same order."""
        while self._launched < len(self._buckets):
            self._launch()
        self._begun, self._launched = False, 0

    def wait(self) -> None:
        """Wait until each parameter's `grad` is the sum, if anything was sent since the last call."""
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
