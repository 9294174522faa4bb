"""Autograd graphs that end at an edge: activations go to another role, gradients come back in the same step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rolemesh.api.batch import Batch, Ragged
from rolemesh.api.workload import RankContext

__all__ = ["Graphs"]

_ALONE = ""
"""The name of a tensor that was received without one."""


@dataclass
class _Graph:
    received: dict[str, torch.Tensor] = field(default_factory=dict)
    sent: dict[str, torch.Tensor] = field(default_factory=dict)
    alone: bool = False
    """Whether a single tensor was received, not named ones."""


class Graphs:
    """The graphs of one rank, by micro-batch, between a forward and a backward pass of one step.

    ::

        def forward(self, x, micro):               # x: what the stage before has sent
            x = self.graphs.receive(x, micro)      # a copy of its own that collects gradients
            return self.graphs.send(self.model(x), micro)

        def backward(self, gradient, micro):       # the gradient of what `forward` returned
            return self.graphs.backward(gradient, micro)   # of what it took; parameters have theirs in `grad`

        def update(self):
            self.graphs.finish()
            self.optimizer.step()

    Graphs are no state, and a snapshot cannot hold them. So they live for one step: a role that starts again runs its
    step from the beginning, on the same values, and so makes them again. A graph of an earlier step is an error. Its
    gradients would come to a rank that may have started again in between.
    """

    def __init__(self, ctx: RankContext, device: torch.device | str = "cpu") -> None:
        """`ctx` says the step; tensors are moved to `device` when they are received, and back to the CPU when sent."""
        self._ctx, self._device = ctx, torch.device(device)
        self._open: dict[int, _Graph] = {}
        self._step = -1
        self.most = 0
        """Maximum number of micro-batches that had a graph at the same time in this step. It determines the memory for
        activations."""

    def receive(self, value: Any, micro: int = 0) -> Any:
        """Return the value with tensors of its own on the device, which stay valid after the operator. Floating-point
        tensors become leaves that collect gradients.

        `value` is a tensor, an array, a `Ragged`, or a `Batch` or mapping with such columns. Arrays are data: they
        become tensors without gradients. Under ``torch.no_grad()`` nothing is kept. Several values of one micro-batch
        need different names.
        """
        self._begin()
        graph = self._open.get(micro, _Graph()) if torch.is_grad_enabled() else _Graph()
        if graph.sent:
            raise RuntimeError(
                f"role {self._ctx.role}, step {self._ctx.step}: micro-batch {micro} has been sent already; give each "
                "micro-batch of a step a number of its own"
            )
        graph.alone = not isinstance(value, Mapping)
        columns = {_ALONE: value} if graph.alone else value
        own = {name: self._own(column, name, graph) for name, column in columns.items()}
        if graph.received:
            self._keep(micro, graph)
        if graph.alone:
            return own[_ALONE]
        return Batch(own, rows=value.rows) if isinstance(value, Batch) else own

    def send(self, outputs: Any, micro: int = 0) -> Any:
        """Return the operator's result: the tensor, or mapping of tensors, without its graph, which is kept."""
        if isinstance(outputs, Mapping):
            return {name: self._cut(tensor, name, micro) for name, tensor in outputs.items()}
        return self._cut(outputs, _ALONE, micro)

    def backward(self, gradients: Any = None, micro: int = 0) -> Any:
        """Run the micro-batch's graph backward and forget it. Return the gradients of the received tensors, in the form
        and by the names in which they came.

        `gradients` are those of the sent tensors, by the same names; others may be among them, such as for another
        tower. Use None after sending a single number, a loss. For a role that received nothing, the mapping is empty.
        Raises `RuntimeError` if there is no graph, and `ValueError` if a gradient is missing or has another shape.
        """
        self._begin()
        graph = self._open.get(micro)
        if graph is None or not graph.sent:
            raise RuntimeError(
                f"role {self._ctx.role}, step {self._ctx.step}: micro-batch {micro} has no graph to go back through; "
                "call `receive` and `send` with its number before, with gradients enabled, and `backward` once"
            )
        outputs = list(graph.sent.values())
        torch.autograd.backward(outputs, [self._gradient(gradients, n, t) for n, t in graph.sent.items()])
        del self._open[micro]
        found = {
            name: (tensor.grad if tensor.grad is not None else torch.zeros_like(tensor)).cpu()
            for name, tensor in graph.received.items()
        }
        return found.get(_ALONE) if graph.alone else found

    def finish(self) -> int:
        """Check that every graph of the step has its gradients. Return `most`, and reset it. Raises `RuntimeError` if a
        graph is left."""
        self._begin()
        if self._open:
            raise self._left()
        most, self.most = self.most, 0
        return most

    # -------------------------------------------------------------------------------------------------------- the parts

    def _keep(self, micro: int, graph: _Graph) -> None:
        self._open[micro] = graph
        self.most = max(self.most, len(self._open))

    def _begin(self) -> None:
        if self._step != self._ctx.step:
            if self._open:
                raise self._left()
            self._step, self.most = self._ctx.step, 0

    def _left(self) -> RuntimeError:
        return RuntimeError(
            f"role {self._ctx.role}: micro-batches {sorted(self._open)} of step {self._step} got no gradients in that "
            "step, and no snapshot can hold their graphs; the edges that bring gradients back must have no lag, and "
            "what needs none is computed under torch.no_grad()"
        )

    def _own(self, value: Any, name: str, graph: _Graph) -> Any:
        if isinstance(value, Ragged):
            return Ragged(np.array(value.values), value.offsets.copy())
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            return torch.from_numpy(np.array(value)).to(self._device)
        if not isinstance(value, torch.Tensor):
            return value
        # What comes over an edge may be a view of memory that is used again once the operator has returned.
        own = value.detach().to(self._device, copy=True)
        if own.is_floating_point() and torch.is_grad_enabled():
            if name in graph.received:
                raise ValueError(f"two values of one micro-batch have the tensor {name!r}; rename one of them")
            graph.received[name] = own.requires_grad_()
        return own

    def _cut(self, tensor: torch.Tensor, name: str, micro: int) -> torch.Tensor:
        if tensor.requires_grad:
            self._begin()
            graph = self._open.get(micro, _Graph())
            graph.sent[name] = tensor
            self._keep(micro, graph)
        return tensor.detach().cpu()

    def _gradient(self, gradients: Any, name: str, tensor: torch.Tensor) -> torch.Tensor | None:
        if gradients is None and tensor.numel() == 1:
            return None
        found = gradients.get(name) if isinstance(gradients, Mapping) else gradients
        if found is None:
            raise ValueError(f"there is no gradient of {name or 'what was sent'!r}")
        found = torch.as_tensor(found).to(self._device, tensor.dtype)
        if found.shape != tensor.shape:
            what = f"the gradient of {name or 'what was sent'!r} has shape {tuple(found.shape)}"
            remedy = (
                "let the rows of a micro-batch be a multiple of the ranks of the role that sends them, or of both's"
            )
            raise ValueError(f"{what}, the tensor {tuple(tensor.shape)}; {remedy}")
        return found
