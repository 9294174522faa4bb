"""The losses that a model adds to the cross-entropy by itself, as transformers counts them: those of its routers.

A mixture of experts whose config says ``output_router_logits: true`` adds a loss that balances its experts (Fedus et
al., arXiv:2101.03961, equations 4 to 6), times ``router_aux_loss_coef``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["Routers", "counts_tokens", "routers", "z_loss"]

_COEFFICIENTS = ("router_aux_loss_coef", "aux_loss_coef")


class Routers:
    """The routers' loss in one forward pass."""

    def __init__(self) -> None:
        self.loss: torch.Tensor | None = None

    def added(self, total: torch.Tensor, weight: float) -> torch.Tensor:
        """Return `total` and the loss for each of `weight` units, so that the trainer's mean has it once."""
        return total if self.loss is None else total + self.loss * weight


def counts_tokens(model: torch.nn.Module) -> bool:
    """Return whether the model adds a loss over the tokens of a row, of which padding must not be one."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    routed = bool(getattr(text, "output_router_logits", False)) and _coefficient(model, text) != 0
    return routed or bool(getattr(text, "z_loss_coefficient", None))


@contextmanager
def routers(model: torch.nn.Module) -> Iterator[Routers]:
    """Yield the routers' loss of the forward passes in this context, times its coefficient: 0-dim, differentiable."""
    found = Routers()
    if not counts_tokens(model):
        yield found
        return
    coefficient = _coefficient(model, model.config.get_text_config())  # type: ignore[union-attr, operator]

    def take(_: torch.nn.Module, __: Any, output: Any) -> None:
        loss = getattr(output, "aux_loss", None)
        if loss is not None and torch.is_tensor(loss):
            found.loss = coefficient * loss

    hook = model.register_forward_hook(take)
    try:
        yield found
    finally:
        hook.remove()


def _coefficient(model: Any, config: Any) -> float:
    """Return the weight of the routers' loss: the model's attribute, or its config's; 0 without one."""
    for holder in (model, config):
        for name in _COEFFICIENTS:
            if getattr(holder, name, None) is not None:
                return float(getattr(holder, name))
    return 0.0


def z_loss(model: Any, logits: torch.Tensor) -> torch.Tensor | float:
    """Return the loss that a model adds for large logits, (rows, width, vocabulary), padding included; 0 without one.

    It is the mean squared logsumexp times the config's ``z_loss_coefficient``: Chowdhery et al., arXiv:2204.02311,
    section 5.
    """
    coefficient = float(getattr(getattr(model, "config", None), "z_loss_coefficient", None) or 0.0)
    return coefficient * logits.float().logsumexp(-1).square().mean() if coefficient else 0.0
