"""Run all ranks of all roles in this process, one call after the other, for debuggers. Routes, metrics and errors are
the usual ones."""

from __future__ import annotations

import asyncio
import inspect
import sys
from bdb import BdbQuit
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from time import perf_counter
from types import GeneratorType
from typing import Any

from msgspec.structs import replace

from rolemesh.api.port import LocalPort
from rolemesh.api.rank_ref import RankRef
from rolemesh.api.workload import RankContext, Workload
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh.graph.routes import Combine, Concat, Part, Route, Take, by_demand, route
from rolemesh.graph.schedule import Activity, flow_order
from rolemesh_inline.calls import InlineCalls
from rolemesh_inline.isolation import Isolated
from rolemesh_runtime.items import Items, apart
from rolemesh_runtime.metrics import Metrics, collect
from rolemesh_runtime.operator_failure import OperatorFailed
from rolemesh_runtime.values import check_even, check_returned, check_yielded, combine, gather, join_chunks, select


class InlineSteps:
    """Runs a job's steps without processes. A collective group, whose ranks wait for each other, runs as one rank."""

    def __init__(
        self,
        graph: LogicalGraph,
        workloads: Mapping[RankRef, Workload],
        contexts: Mapping[RankRef, RankContext],
        ports: Mapping[RankRef, LocalPort],
        *,
        steps: int | None,
        metrics_every: int,
        report: Callable[[dict[str, list[Metrics]]], None],
        become: Callable[[str], None] = lambda role: None,
    ) -> None:
        """`workloads` (already set up), `contexts` and their `ports` are by role and rank; `report` takes lines of
        metrics by role. `become` sets the environment variables of a role."""
        self._graph = graph
        self._workloads = workloads
        self._contexts = contexts
        self._ports = ports
        self._steps = steps or sys.maxsize
        self._every = metrics_every
        self._report = report
        self._become = become
        self._sizes = Counter(role for role, _ in workloads)
        self._activity = Activity(graph)
        self._routes: dict[int, Route] = {}
        for edge in graph.edges:
            src = graph.ops[edge.src]
            dst = graph.ops[edge.dst]
            sizes = self._sizes[src.role], self._sizes[dst.role]
            self._routes[edge.id] = route(edge.src_partition, sizes[0], edge.dst_partition, sizes[1])
        self._reported = -1
        self._begin_lines()
        self._values: dict[tuple[int, int], dict[int, list[Isolated]]] = {}
        self._items: dict[tuple[int, int], Items] = {}
        self.reason = ""
        """Why the job is finished with the current step."""
        self._order = flow_order(graph)
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._calls: dict[RankRef, InlineCalls] = {}
        for ref, ctx in contexts.items():
            if any(caller == ref.role for caller, _ in graph.callers):
                made = InlineCalls(graph, ctx, workloads, contexts, self._sizes, self._loop, become)
                self._calls[ref] = ports[ref].caller = made
        self.produced: dict[str, int] = {}
        """Encoded bytes of the calls' results so far, by label, over all ranks."""

    def run(self, finished: Callable[[int], None] = lambda step: None) -> int:
        """Run all steps, or until there is a `reason`; call `finished(step)` after each. Return the last step.

        Raises `OperatorFailed`, or `KeyboardInterrupt` if the user leaves a debugger.
        """
        with self._runner:
            for step in range(self._steps):
                self._step(step)
                finished(step)
                for workload in self._workloads.values():
                    workload.committed(step)
                if self.reason:
                    break
        return step

    def _step(self, step: int) -> None:
        """Run every call that is active at `step`, on every rank of its role."""
        for ctx in self._contexts.values():
            ctx.step = step  # services of roles without an operator in this step look at it, too
        for op in self._order:
            if self._activity.active(op.id, step):
                for rank in range(self._sizes[op.role]):
                    self._call(op, rank, step)
        for edge in self._graph.edges:
            self._values.pop((edge.id, step - edge.lag), None)
        said = (f"{ref}: {port.finishing}" for ref, port in self._ports.items() if port.finishing)
        self.reason = self.reason or next(said, "")
        for port in self._ports.values():
            port.notes.clear()
        if (step + 1) % self._every == 0 or step + 1 == self._steps or self.reason:
            parts: dict[str, list[Metrics]] = {}
            for ref, line in self._lines.items():
                if not self._graph.of_role(ref.role):
                    collect(self._ports[ref], ref.role, line)  # what it reports outside of calls
                parts.setdefault(ref.role, []).append(replace(line, step=step, steps=step - self._reported))
            self._reported = step
            self._begin_lines()
            self._report(parts)

    def _begin_lines(self) -> None:
        self._lines = {ref: Metrics(ref.role, -1, 0, 1, [0.0, 0.0, 0.0]) for ref in self._contexts}

    def _call(self, op: OpCall, rank: int, step: int) -> None:
        key = RankRef(op.role, rank)
        ctx = self._contexts[key]
        line = self._lines[key]
        try:
            arguments = dict(op.constants)
            for edge in self._graph.inputs(op.id):
                made = step - edge.lag
                if edge.newest:
                    there = (at for at in range(step, max(made, 0) - 1, -1) if (edge.id, at) in self._values)
                    made = next(there, made)
                    ctx.metric(staleness=step - made)
                if edge.initial and made < self._activity.first(edge):
                    value = deepcopy(edge.initial[0])
                    arguments[edge.param] = iter([value]) if op.streaming else value
                    continue
                parts = self._parts(edge, rank, made)
                how = self._routes[edge.id].combine
                arguments[edge.param] = self._stream(edge, parts, how) if op.streaming else gather(parts, how)
            began = perf_counter()
            self._become(op.role)
            if key in self._calls:
                self._calls[key].op = op
            result = self._run(op, key, arguments)
            chunked = type(result) is GeneratorType
            chunks = list(result) if chunked else [result]
            line.times[0] += perf_counter() - began
            collect(self._ports[key], op.label, line)
            if key in self._calls:
                for ref, seconds in self._calls[key].served_s.items():
                    self._lines[ref].times[0] += seconds
                self._calls[key].served_s.clear()
            if chunked and by_demand(op.returns) is None:
                check_yielded(len(chunks))
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

    def _run(self, op: OpCall, ref: RankRef, arguments: dict[str, Any]) -> Any:
        """Call the operator. If rows are shared by demand, each rank takes the same number."""
        method = getattr(self._workloads[ref], op.operator)
        ctx = self._contexts[ref]
        for edge in self._graph.inputs(op.id):
            if (how := by_demand(edge.dst_partition)) is not None:
                items = self._items.setdefault((op.id, ref.rank), Items(ctx, edge.param, how))
                count = apart(arguments[edge.param], how.rows)[1]
                return items.run(partial(self._awaited, method), arguments, ctx.mine(count))
        return self._awaited(method, **arguments)

    def _awaited(self, method: Callable[..., Any], /, **arguments: Any) -> Any:
        result = method(**arguments)
        return self._loop.run_until_complete(result) if inspect.iscoroutine(result) else result

    def _parts(self, edge: Edge, rank: int, made: int) -> list[list[Any]]:
        """Return the chunks for this rank from each of its sources."""
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

    def _stream(self, edge: Edge, parts: list[list[Any]], how: Combine) -> Iterator[Any]:
        apart = isinstance(how, Take) or (isinstance(how, Concat) and how.axis == 0)
        for index in range(max(map(len, parts))):
            row = [chunks[index] for chunks in parts if index < len(chunks)]
            if apart:
                yield from row
            else:
                check_even(edge.param, len(row), len(parts))
                yield combine(row, how)
