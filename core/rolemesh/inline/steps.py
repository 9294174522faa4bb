"""All ranks of all roles in this process, one call after the other: for debuggers. Same routes, metrics and errors."""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Callable, Iterator, Mapping
from time import monotonic_ns
from types import GeneratorType
from typing import Any

from rolemesh.api.workload import RankContext, Workload
from rolemesh.graph.chunks import check_returned, join_chunks
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh.graph.routes import Concat, Part, Route, Take, route
from rolemesh.graph.schedule import Activity, flow_order
from rolemesh.graph.values import combine, select
from rolemesh.inline.isolation import Isolated
from rolemesh.runs.meter import Meter
from rolemesh.runs.metrics import RankMetrics
from rolemesh.runs.operator_failure import OperatorFailed

__all__ = ["InlineSteps"]


class InlineSteps:
    """Runs a job's steps without processes. Collective groups need processes: the caller refuses those above 1 rank."""

    def __init__(
        self,
        graph: LogicalGraph,
        workloads: Mapping[tuple[str, int], Workload],
        contexts: Mapping[tuple[str, int], RankContext[Any]],
        *,
        steps: int,
        metrics_every: int,
        report: Callable[[RankMetrics], None],
    ) -> None:
        """`workloads` and `contexts` by role and rank, set up already; `report` takes each rank's lines of metrics."""
        self._graph, self._workloads, self._contexts, self._steps = graph, workloads, contexts, steps
        self._sizes = {role: sum(r == role for r, _ in workloads) for role, _ in workloads}
        self._activity = Activity(graph)
        self._routes: dict[int, Route] = {}
        for edge in graph.edges:
            src, dst = graph.ops[edge.src], graph.ops[edge.dst]
            sizes = self._sizes[src.role], self._sizes[dst.role]
            self._routes[edge.id] = route(edge.src_partition, sizes[0], edge.dst_partition, sizes[1])
        self._meters = {key: Meter(ctx, metrics_every, report) for key, ctx in contexts.items()}
        self._values: dict[tuple[int, int], dict[int, list[Isolated]]] = {}
        self._order = flow_order(graph)
        self.produced: dict[str, int] = {}
        """Bytes that the calls have returned so far, encoded, by label; over all ranks."""

    def run(self, start: int = 0, finished: Callable[[int], None] | None = None) -> int:
        """Run all steps from `start`; `finished(step)` is called after each. Returns the last finished step.

        Raises `OperatorFailed`, or `KeyboardInterrupt` if a debugger is left.
        """
        for step in range(start, self._steps):
            self.run_step(step)
            if finished is not None:
                finished(step)
        for meter in self._meters.values():
            meter.close(self._steps - 1)
        return self._steps - 1

    def run_step(self, step: int) -> None:
        """Run every call that is active at `step`, on every rank of its role."""
        for op in self._order:
            if self._activity.active(op.id, step):
                for rank in range(self._sizes[op.role]):
                    self._call(op, rank, step)
        for edge in self._graph.edges:
            self._values.pop((edge.id, step - edge.lag), None)
        now = monotonic_ns()
        for meter in self._meters.values():
            meter.finished(step, now)

    def _call(self, op: OpCall, rank: int, step: int) -> None:
        key = (op.role, rank)
        ctx, meter = self._contexts[key], self._meters[key]
        ctx.step = step
        try:
            arguments = dict(op.constants)
            for edge in self._graph.inputs(op.id):
                parts = self._parts(edge, rank, step - edge.lag)
                arguments[edge.param] = self._stream(edge, parts) if op.streaming else self._whole(edge, parts)
            began = monotonic_ns()
            result = getattr(self._workloads[key], op.operator)(**arguments)
            chunked = type(result) is GeneratorType
            chunks = list(result) if chunked else [result]
            meter.computing += monotonic_ns() - began
            meter.collect(op.label)
            if chunked and not chunks:
                raise ValueError("it yielded nothing; yield at least one chunk, empty if there are no rows")
            wanted = [edge for edge in self._graph.outputs(op.id) if self._activity.consumed(edge, step, self._steps)]
            if wanted:
                check_returned(chunks)
                taken = [Isolated(chunk) for chunk in chunks]
                size = sum(chunk.nbytes for chunk in taken)
                self.produced[op.label] = self.produced.get(op.label, 0) + size
            for edge in wanted:
                self._values.setdefault((edge.id, step), {})[rank] = taken
        except BdbQuit as error:
            raise KeyboardInterrupt from error
        except (Exception, SystemExit) as error:
            raise OperatorFailed(op.label, step, error, rank) from error

    def _parts(self, edge: Edge, rank: int, made: int) -> list[list[Any]]:
        """The chunks that each of the consumer's sources has for it."""
        way = self._routes[edge.id]
        found = []
        for source in way.sources(rank):
            selection = way.sends_to(source, rank)
            assert selection is not None
            # What a consumer in another process would get: copies, with read-only arrays.
            chunks = [chunk.value() for chunk in self._values[edge.id, made][source]]
            if isinstance(selection, Part):
                chunks = [join_chunks(chunks)]
            found.append([select(chunk, selection) for chunk in chunks])
        return found

    def _whole(self, edge: Edge, parts: list[list[Any]]) -> Any:
        return combine([join_chunks(chunks) for chunks in parts], self._routes[edge.id].combine)

    def _stream(self, edge: Edge, parts: list[list[Any]]) -> Iterator[Any]:
        how = self._routes[edge.id].combine
        apart = isinstance(how, Take) or (isinstance(how, Concat) and how.axis == 0)
        for index in range(max(map(len, parts))):
            row = [chunks[index] for chunks in parts if index < len(chunks)]
            if apart:
                yield from row
            elif len(row) == len(parts):
                yield combine(row, how)
            else:
                raise ValueError(f"producers of {edge.param!r} yield different numbers of chunks")
