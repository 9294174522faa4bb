"""A module and a loss of one's own: what Hugging Face's models have not (a scalar, running means, no logits)."""

from __future__ import annotations

from typing import Any

import torch

from rolemesh_training import LossOutput


class Regression(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(3, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU(), torch.nn.Dropout(0.2)
        )
        self.head = torch.nn.Linear(width, 1)
        self.gain = torch.nn.Parameter(torch.tensor(1.0))
        self.unused = torch.nn.Parameter(torch.ones(5, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain * self.head(self.body(x))[:, 0]


class Plain(Regression):
    """A module whose update does not depend on the split of rows over ranks."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.body = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Tanh())


def make(width: int = 7) -> Regression:
    return Regression(width)


def plain(width: int = 7) -> Regression:
    return Plain(width)


def nothing() -> str:
    return "no module"


def squared_error(model: Any, batch: Any, ctx: Any) -> LossOutput:
    x, y = (torch.as_tensor(batch[name], device=ctx.device) for name in ("x", "y"))
    return LossOutput((model(x) - y).square().sum(), float(batch.rows))
