"""Two stages of a model and its loss."""

from __future__ import annotations

from typing import Any

import torch

from rolemesh_training import LossOutput


class Front(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 5)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"hidden": self.layer(x).tanh()}


class Back(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(5, 1)

    def forward(self, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.layer(hidden)[:, 0]}


def front() -> Front:
    return Front()


def back() -> Back:
    return Back()


def not_named() -> torch.nn.Module:
    return torch.nn.Linear(3, 5)


def squared_error(model: Any, batch: Any, ctx: Any) -> LossOutput:
    return LossOutput((model(batch["hidden"])["y"] - batch["y"]).square().sum(), float(batch.rows))
