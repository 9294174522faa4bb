"""Optimizers of rows: each updates only the rows that have gradients, as torch's optimizers do for sparse gradients."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

__all__ = ["Adagrad", "Adam", "Ftrl", "Optimizer", "Sgd"]

Floats = NDArray[np.float32]


class Sgd(BaseModel, extra="forbid", allow_inf_nan=False):
    """`torch.optim.SGD` without momentum."""

    use: Literal["sgd"] = "sgd"
    lr: float = Field(0.01, gt=0, description="learning rate")

    def slots(self) -> int:
        """Return the number of float32 that the optimizer keeps for each value."""
        return 0

    def begin(self, kept: Floats) -> None:
        """Set what the optimizer keeps for new rows: float32 (rows, slots x dim)."""

    def step(self, values: Floats, kept: Floats, grads: Floats, update: int) -> None:
        """Change `values` (rows, dim) and `kept` (rows, slots, dim) by the sums of the rows' gradients.

        `update` is the number of the table's update, from 1.
        """
        values -= self.lr * grads


class Adagrad(Sgd):
    """`torch.optim.Adagrad` (Duchi et al. 2011)."""

    use: Literal["adagrad"] = "adagrad"  # type: ignore[assignment]
    initial: float = Field(0.0, ge=0, description="what the sum of squares begins with")
    eps: float = Field(1e-10, ge=0, description="added to the root of the sum of squares")

    def slots(self) -> int:
        return 1

    def begin(self, kept: Floats) -> None:
        kept[:] = self.initial

    def step(self, values: Floats, kept: Floats, grads: Floats, update: int) -> None:
        kept[:, 0] += grads * grads
        values -= np.float32(self.lr) * (grads / (np.sqrt(kept[:, 0]) + np.float32(self.eps)))


class Adam(Sgd):
    """`torch.optim.SparseAdam` (Kingma and Ba 2015): the corrections count the updates of the table, not of the row."""

    use: Literal["adam"] = "adam"  # type: ignore[assignment]
    lr: float = Field(0.001, gt=0, description="learning rate")
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the mean of gradients")
    beta2: float = Field(0.999, ge=0, lt=1, description="decay of the mean of their squares")
    eps: float = Field(1e-8, gt=0, description="added to the root of that mean")

    def slots(self) -> int:
        return 2

    def begin(self, kept: Floats) -> None:
        kept[:] = 0

    def step(self, values: Floats, kept: Floats, grads: Floats, update: int) -> None:
        kept[:, 0] += np.float32(1 - self.beta1) * (grads - kept[:, 0])
        kept[:, 1] += np.float32(1 - self.beta2) * (grads * grads - kept[:, 1])
        size = self.lr * (1 - self.beta2**update) ** 0.5 / (1 - self.beta1**update)
        values -= np.float32(size) * (kept[:, 0] / (np.sqrt(kept[:, 1]) + np.float32(self.eps)))


class Ftrl(BaseModel, extra="forbid", allow_inf_nan=False):
    """FTRL-Proximal (McMahan et al. 2013, algorithm 1): many weights become exactly 0."""

    use: Literal["ftrl"]
    alpha: float = Field(0.05, gt=0, description="learning rate")
    beta: float = Field(1.0, ge=0, description="smooths the learning rate of rare keys")
    l1: float = Field(0.0, ge=0, description="weight of the sum of absolute values")
    l2: float = Field(0.0, ge=0, description="weight of the sum of squares")

    def slots(self) -> int:
        return 2

    def begin(self, kept: Floats) -> None:
        kept[:] = 0

    def step(self, values: Floats, kept: Floats, grads: Floats, update: int) -> None:
        z, n = kept[:, 0], kept[:, 1]
        more = n + grads * grads
        z += grads - (np.sqrt(more) - np.sqrt(n)) / np.float32(self.alpha) * values
        n[:] = more
        weight = (z - np.sign(z) * np.float32(self.l1)) / (
            (np.float32(self.beta) + np.sqrt(n)) / np.float32(self.alpha) + np.float32(self.l2)
        )
        values[:] = np.where(np.abs(z) <= self.l1, np.float32(0), -weight)


Optimizer = Annotated[Sgd | Adagrad | Adam | Ftrl, Field(discriminator="use")]
