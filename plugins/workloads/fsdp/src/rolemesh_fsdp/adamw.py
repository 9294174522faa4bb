"""AdamW over this rank's blocks: warm-up, clipping by the global norm, and the state to save."""

from __future__ import annotations

import math

import torch

from rolemesh_fsdp.group import Group
from rolemesh_fsdp.model import Blocks, local
from rolemesh_fsdp.options import FSDPOptions

__all__ = ["AdamW"]

_MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW:
    """torch's fused AdamW on plain local tensors (it is elementwise, so the blocks need no DTensor dispatch).

    The moments exist from the start, so that a snapshot has the same entries and sizes at every step.
    """

    def __init__(self, blocks: Blocks, options: FSDPOptions, group: Group) -> None:
        self.blocks = blocks
        self.group = group
        self.lr = options.lr
        self.warmup_steps = options.warmup_steps
        self.clip_norm = math.inf if options.clip_norm is None else options.clip_norm
        self.updates = 0
        self._leaves = {name: torch.nn.Parameter(data) for name, data in blocks.data.items() if data.numel()}
        decayed = [p for name, p in self._leaves.items() if len(blocks.shape(name)) > 1]
        plain = [p for name, p in self._leaves.items() if len(blocks.shape(name)) < 2]
        groups = [{"params": decayed, "weight_decay": options.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        self._adamw = torch.optim.AdamW(
            [g for g in groups if g["params"]] or [torch.zeros(1)],
            lr=options.lr, betas=options.betas, eps=options.eps, fused=True,
        )  # fmt: skip
        for leaf in self._leaves.values():
            moments = {moment: torch.zeros_like(leaf.detach()) for moment in _MOMENTS}
            self._adamw.state[leaf] = {"step": torch.zeros((), device=leaf.device), **moments}

    def update(self, scale: float) -> tuple[float, float]:
        """Apply the accumulated gradients times `scale`; return (their global norm before clipping, learning rate).

        Raises `FloatingPointError` on every rank if the norm is not finite.
        """
        gradients = {
            name: local(parameter.grad)
            for name, parameter in self.blocks.parameters.items()
            if parameter.grad is not None and name in self._leaves
        }
        squares = [torch.linalg.vector_norm(g, dtype=torch.float64).square() for g in gradients.values()]
        norm = scale * math.sqrt(self.group.sum(float(torch.stack(squares).sum()) if squares else 0.0))
        if not math.isfinite(norm):
            raise FloatingPointError(
                f"the gradient norm of update {self.updates} is {norm}: lower lr, lengthen warmup_steps, or look for a "
                "loss that divides by zero or takes the logarithm of zero"
            )
        lr = self.lr * min(1.0, (self.updates + 1) / self.warmup_steps) if self.warmup_steps else self.lr
        factor = scale * min(1.0, self.clip_norm / (norm + 1e-6))
        for name, gradient in gradients.items():
            self._leaves[name].grad = gradient.mul_(factor)
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self._adamw.step()
        self.clear()
        self.updates += 1
        return norm, lr

    def clear(self) -> None:
        """Drop the gradients."""
        for parameter in self.blocks.parameters.values():
            parameter.grad = None
        for leaf in self._leaves.values():
            leaf.grad = None

    def moments(self) -> dict[str, dict[str, torch.Tensor]]:
        """``exp_avg`` and ``exp_avg_sq`` by parameter, empty blocks included, in a fixed order."""
        return {
            moment: {
                name: self._adamw.state[self._leaves[name]][moment] if name in self._leaves else data
                for name, data in self.blocks.data.items()
            }
            for moment in _MOMENTS
        }

    def restore(self, updates: int) -> None:
        """The tensors of `moments` have been filled; `updates` sets the scheduler's and AdamW's position."""
        for leaf in self._leaves.values():
            self._adamw.state[leaf]["step"].fill_(updates)
        self.updates = updates
