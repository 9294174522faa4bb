"""What a loss function is: its arguments and its result. Light, so that a flow file may import it."""

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
    """What a loss may know besides model and batch."""

    device: torch.device
    """Where the model computes; move the batch's columns there."""
    step: int
    """The flow's step, from 0."""
    version: int
    """How many `train` calls the weights have seen; 0 for the initial weights."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The job file's `loss_options`."""


@dataclass(frozen=True)
class LossOutput:
    """Sums, not means: the trainer divides by the weight of all ranks and micro-batches together."""

    total: torch.Tensor
    """0-dim, differentiable: the loss summed over what `weight` counts (tokens, rows)."""
    weight: torch.Tensor | float
    """What `total` was summed over. 0 says that these rows teach nothing: the backward pass is then left out
    unless another rank needs it."""
    metrics: Mapping[str, tuple[torch.Tensor | float, torch.Tensor | float]] = field(default_factory=dict)
    """Name → (sum, weight); reported as the mean over all ranks and micro-batches."""
    besides: float = 0.0
    """What the mean counts beside `weight`, though it teaches nothing: the tokens or rows of a micro-batch of weight 0.
    If the weight of all micro-batches and ranks is 0, there is no update."""


class LossFunction(Protocol):
    """``loss(model, batch, ctx) -> LossOutput``, named in the job file by import string.

    It is called once per micro-batch of at least one row and must call `model` exactly once, whatever the rows are:
    each forward pass of an FSDP model gathers its parameters from all ranks, so an extra or a missing one hangs them.
    """

    def __call__(self, model: torch.nn.Module, batch: Batch, ctx: LossContext) -> LossOutput: ...


class Sampler(Protocol):
    """What a workload says that samples completions, so that trainers can compare before the job starts.

    Its rows say the same again, in the column `sampling` (a mapping per row), which is what a loss goes by.
    """

    @classmethod
    def sampling(cls, options: Any, operator: str) -> Mapping[str, Any] | None:
        """What shapes the distribution that `operator` samples from, by vLLM's names: ``{"temperature": 0.7}``.

        Temperature 0 is greedy. None if the operator samples nothing.
        """
        ...

    @classmethod
    def completions(cls, options: Any, operator: str) -> int | None:
        """How many completions of each prompt `operator` makes. A workload may leave this method out."""
        ...
