"""The `stage` workload as the kernel sees it: a part of a model whose other parts are other roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from rolemesh.api.batch import Batch
from rolemesh.api.partition import Broadcast, Split
from rolemesh.api.workload import OperatorSpec, RankContext, operator
from rolemesh_ddp.options import StageOptions
from rolemesh_ddp.workload import DDPWorkload

if TYPE_CHECKING:
    from rolemesh_ddp.stage_engine import StageEngine

__all__ = ["StageWorkload"]

_OPERATORS = ("forward", "loss", "backward", "update", "predict", "weights")


class StageWorkload(DDPWorkload):
    """A part of a model. Activations travel over edges; their gradients travel back in the same step.

    Each rank of the role has the whole part, and gradients are summed over its ranks. The columns of batches have
    names: torch tensors are activations, which get gradients; arrays are data.
    """

    Options: ClassVar[type[BaseModel]] = StageOptions
    preload: ClassVar[Sequence[str]] = (
        "rolemesh_training.trainer",
        "rolemesh_training.losses",
        "rolemesh_ddp.stage_engine",
    )

    engine: StageEngine

    @classmethod
    def operators(cls, options: Any) -> Mapping[str, OperatorSpec]:
        """Return the operators of a stage, and `weights`."""
        found = super(DDPWorkload, cls).operators(options)
        return {name: found[name] for name in _OPERATORS}

    @classmethod
    def check(cls, options: Any, world_size: int) -> None:
        """Nothing is left to check: validating the options has already found the module's function."""

    @operator(batch=Split(), more=Split(), micro=Broadcast(), returns=Split())
    def forward(self, batch: Batch, more: Batch | None = None, micro: int = 0) -> Batch:
        """Return the module's result for the columns of `batch` and `more`. Its graph waits for `backward`.

        `micro` is the number of the micro-batch in the step.
        """
        return self.engine.forward(_joined(batch, more), micro)

    @operator(batch=Split(), more=Split(), micro=Broadcast())
    def loss(self, batch: Batch, more: Batch | None = None, micro: int = 0) -> None:
        """Compute the loss of the options for the columns of `batch` and `more`, which are tensors. `backward`
        continues from it."""
        self.engine.find_loss(_joined(batch, more), micro)

    @operator(gradients=Split(), micro=Broadcast(), returns=Split())
    def backward(self, gradients: Batch | None = None, micro: int = 0) -> Batch:
        """Return the gradients of the activations that the micro-batch's `forward` or `loss` received, by their names.

        `gradients` has the gradients of the results of `forward` by their names, and may have others; after `loss`
        there are none. Gradients are those of the loss's sum: `update` divides.
        """
        return self.engine.backward_of(gradients, micro)

    @operator(weight=Broadcast(), returns=Broadcast())
    def update(self, weight: float | None = None) -> float:
        """Update the parameters from the gradients of the step's micro-batches over all ranks. Return the weight that
        divides them.

        The weight is the sum of the losses' weights. A role without a loss gets it as an argument:
        `front.update(back.update())`.
        """
        return self.engine.finish(weight)

    @operator(batch=Split(), more=Split(), returns=Split())
    def predict(self, batch: Batch, more: Batch | None = None) -> Batch:
        """Return the module's result in evaluation mode, without a graph."""
        return self.engine.predict(_joined(batch, more))

    def make(self, ctx: RankContext) -> StageEngine:
        from rolemesh_ddp.stage_engine import StageEngine

        return StageEngine(ctx, self.options)


def _joined(batch: Batch, more: Batch | None) -> Batch:
    return batch if more is None else batch | more
