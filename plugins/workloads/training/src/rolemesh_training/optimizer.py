"""The optimizer over this rank's blocks: schedule, clipping by the global norm, and the state to save."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from rolemesh_training.options import TrainerOptions
from rolemesh_training.schedules import factor

__all__ = ["MOMENTS", "Optimizer", "divided_by_decay", "not_finite", "of"]

MOMENTS = {"adamw": ("exp_avg", "exp_avg_sq"), "adam": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}


def of(groups: list[dict[str, object]], options: TrainerOptions, *, fused: bool = True) -> torch.optim.Optimizer:
    """Return the torch optimizer that the options name, over parameter groups."""
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum, fused=fused)
    kind = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=options.lr, betas=options.betas, eps=options.eps, fused=fused)


def not_finite(norm: float, update: int) -> FloatingPointError:
    """Return the error that every rank raises before weights are spoilt."""
    return FloatingPointError(
        f"the gradient norm of update {update} is {norm}: lower lr, lengthen warmup_steps, or look for a loss that "
        "divides by zero or takes the logarithm of zero"
    )


def divided_by_decay(
    parameters: Mapping[str, torch.Tensor], dims: Mapping[str, int], weight_decay: float
) -> list[dict[str, object]]:
    """Return the parameter groups that decay, and do not: vectors and biases do not, as in transformers' Trainer.

    `dims` are the dimensions of the whole parameters: experts have biases of two. A group is left out if it is empty.
    """
    decays = {name: dims[name] > 1 and "bias" not in name for name in parameters}
    groups = [([p for name, p in parameters.items() if decays[name] == each], each) for each in (True, False)]
    return [{"params": group, "weight_decay": weight_decay * each} for group, each in groups if group]


class Optimizer:
    """An elementwise optimizer of torch, fused, on plain local tensors, so blocks need no DTensor dispatch.

    The moments exist from the start, so a snapshot has the same entries and sizes at every step.
    """

    def __init__(
        self,
        data: Mapping[str, torch.Tensor],
        dims: Mapping[str, int],
        options: TrainerOptions,
        copies: Mapping[str, int] | None = None,
    ) -> None:
        """`data` are the tensors to update, by name. `dims`: see `divided_by_decay`. `copies` are the numbers of ranks
        that update the same tensor, which counts once in the gradient norm; None: 1 each."""
        self.data = data
        self._copies = copies or {}
        self.options = options
        self.clip_norm = math.inf if options.clip_norm is None else options.clip_norm
        self.updates = 0
        self._leaves = {name: torch.nn.Parameter(block) for name, block in data.items() if block.numel()}
        groups = divided_by_decay(self._leaves, dims, options.weight_decay)
        self._torch = of(groups or [{"params": [torch.zeros(1)]}], options)
        self._moments = MOMENTS[options.optimizer]
        for leaf in self._leaves.values():
            self._torch.state[leaf] = {moment: torch.zeros_like(leaf.detach()) for moment in self._moments}
            if options.optimizer != "sgd":
                self._torch.state[leaf]["step"] = torch.zeros((), device=leaf.device)

    def update(
        self, gradients: Mapping[str, torch.Tensor], scale: float, total: Callable[[float], float] = float
    ) -> tuple[float, float]:
        """Apply `gradients` times `scale` (they are changed). Return their global norm before clipping, and the
        learning rate.

        `total` sums a number over the ranks among which the gradients are divided. Raises `FloatingPointError` on every
        rank if the norm is not finite.
        """
        gradients = {name: gradient for name, gradient in gradients.items() if name in self._leaves}
        squares = [
            torch.linalg.vector_norm(gradient, dtype=torch.float64).square() / self._copies.get(name, 1)
            for name, gradient in gradients.items()
        ]
        norm = scale * math.sqrt(total(float(torch.stack(squares).sum()) if squares else 0.0))
        if not math.isfinite(norm):
            raise not_finite(norm, self.updates)
        lr = self.options.lr * factor(self.options, self.updates)
        shrink = scale * min(1.0, self.clip_norm / (norm + 1e-6))
        for name, gradient in gradients.items():
            self._leaves[name].grad = gradient.mul_(shrink)
        for group in self._torch.param_groups:
            group["lr"] = lr
        self._torch.step()
        for leaf in self._leaves.values():
            leaf.grad = None
        self.updates += 1
        return norm, lr

    def moments(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return each moment by parameter, including empty blocks, in a fixed order."""
        return {
            moment: {
                name: self._torch.state[self._leaves[name]][moment] if name in self._leaves else data
                for name, data in self.data.items()
            }
            for moment in self._moments
        }

    def restore(self, updates: int) -> None:
        """The tensors of `moments` were filled: set the position of schedule and optimizer to `updates`."""
        for leaf in self._leaves.values():
            if "step" in self._torch.state[leaf]:
                self._torch.state[leaf]["step"].fill_(updates)
        self.updates = updates
