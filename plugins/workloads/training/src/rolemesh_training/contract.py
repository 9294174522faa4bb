"""The contract of loss functions: their arguments and their result. Light, so that a flow file may import it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from rolemesh.api.batch import Batch

if TYPE_CHECKING:
    import torch

__all__ = ["LossContext", "LossFunction", "LossOutput", "Sampler"]


@dataclass(frozen=True)
class LossContext:
    """Facts for a loss, beside model and batch."""

    device: torch.device
    """Device on which the model computes. Move the batch's columns there."""
    step: int
    """The flow's step, from 0."""
    version: int
    """Number of `train` calls so far; 0 for the initial weights."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The job file's `loss_options`."""


@dataclass(frozen=True)
class LossOutput:
    """Sums, not means: the trainer divides by the weight over all ranks and micro-batches."""

    total: torch.Tensor
    """0-dim, differentiable: the loss, summed over the units that `weight` counts (tokens, rows)."""
    weight: torch.Tensor | float
    """Number of units in `total`. 0 says that these rows teach nothing; the backward pass is then skipped unless
    another rank needs it."""
    metrics: Mapping[str, tuple[torch.Tensor | float, torch.Tensor | float]] = field(default_factory=dict)
    """Name → (sum, weight); reported as the mean over all ranks and micro-batches."""
    besides: float = 0.0
    """Additional units of the mean that teach nothing: the tokens or rows of a micro-batch of weight 0. If the weight
    over all micro-batches and ranks is 0, there is no update."""


class LossFunction(Protocol):
    """``loss(model, batch, ctx) -> LossOutput``, named in the job file by import string.

    It is called once per micro-batch of at least one row, and must call `model` exactly once for any rows. Each forward
    pass of an FSDP model gathers its parameters from all ranks, so an extra or missing pass hangs them.
    """

    def __call__(self, model: torch.nn.Module, batch: Batch, ctx: LossContext) -> LossOutput: ...


class Sampler(Protocol):
    """Methods of a workload that samples completions, with which trainers compare settings before the job starts.

    Its rows say the same in the column `sampling` (a mapping per row), and a loss uses that column.
    """

    @classmethod
    def sampling(cls, options: Any, operator: str) -> Mapping[str, Any] | None:
        """Return the parameters of the distribution that `operator` samples from, by vLLM's names: ``{"temperature":
        0.7}``.

        Temperature 0 is greedy. None if the operator samples nothing.
        """
        ...

    @classmethod
    def completions(cls, options: Any, operator: str) -> int | None:
        """Return the number of completions of each prompt that `operator` makes. A workload may leave this method
        out."""
        ...
