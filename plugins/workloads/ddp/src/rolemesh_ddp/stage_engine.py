"""A part of a model in one rank: passes of micro-batches in the order of the flow, then an update."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from rolemesh.api.batch import Batch
from rolemesh.api.workload import RankContext
from rolemesh.errors import RolemeshError
from rolemesh_ddp.engine import Engine
from rolemesh_torch import Graphs
from rolemesh_training.sums import add_output, counted, weights

__all__ = ["StageEngine"]


class StageEngine(Engine):
    """Like the trainer of `ddp`, but inputs and gradients come from other roles."""

    def __init__(self, ctx: RankContext, options: Any) -> None:
        super().__init__(ctx, options)
        self.graphs = Graphs(ctx, self.device)
        self._sums: dict[str, list[float]] = {}
        self._times: list[list[Any]] = []
        parameters = inspect.signature(self.model.forward).parameters.values()
        self._named = None if any(p.kind == p.VAR_KEYWORD for p in parameters) else {p.name for p in parameters}

    def forward(self, batch: Batch, micro: int) -> Batch:
        """See `StageWorkload.forward`."""
        if self.options.frozen:
            return self.predict(batch)
        with self._timed("forward", micro):
            self.model.train()
            columns = self.graphs.receive(batch, micro)
            with self.precision():
                found = self._outputs(columns)
            return Batch(self.graphs.send(found, micro), rows=batch.rows)

    def find_loss(self, batch: Batch, micro: int) -> None:
        """See `StageWorkload.loss`."""
        with self._timed("forward", micro):
            self.model.train()
            output = self.loss_of(self.graphs.receive(batch, micro))
            self.graphs.send(output.total, micro)
            add_output(self._sums, output)

    def backward_of(self, gradients: Batch | None, micro: int) -> Batch:
        """See `StageWorkload.backward`."""
        with self._timed("backward", micro):
            return Batch(self.graphs.backward(gradients, micro))

    def finish(self, weight: float | None) -> float:
        """See `StageWorkload.update`."""
        if self.optimizer is None:
            remedy = "set its option frozen to false, or leave the call out of the flow"
            raise RolemeshError(f"role {self.ctx.role} is frozen, and cannot be trained", remedy=remedy)
        self.ctx.metric(in_flight=self.graphs.finish())
        if self.options.trace_passes and self.ctx.rank == 0:
            self.ctx.record(**{f"passes_{self.ctx.role}": self._times})
        sums, self._sums, self._times = self._sums, {}, []
        self.passed()
        if weight is None:
            weight = counted(*self.group.sums(*weights(sums)))
            self.learn_from(sums)
        else:
            self.step(weight)
        self.version += 1
        return weight

    @torch.no_grad()
    def predict(self, batch: Batch) -> Batch:
        """See `StageWorkload.predict`."""
        self.model.eval()
        with self.precision():
            found = self._outputs(self.graphs.receive(batch))
        return Batch({name: tensor.cpu() for name, tensor in found.items()}, rows=batch.rows)

    def _outputs(self, columns: Batch) -> dict[str, torch.Tensor]:
        found = self.model(**{name: column for name, column in columns.items() if self._takes(name)})
        if not isinstance(found, Mapping):
            what = f"the module of {self.options.model} returned {type(found).__name__}"
            raise TypeError(f"{what}; a stage returns a mapping of tensors by name, which become columns")
        return dict(found)

    def _takes(self, name: str) -> bool:
        return self._named is None or name in self._named

    @contextmanager
    def _timed(self, kind: str, micro: int) -> Iterator[None]:
        begin = time.time()
        yield
        self._times.append([kind, micro, round(begin, 4), round(time.time(), 4)])
