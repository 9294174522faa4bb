"""A rank's steps: take the inputs, run the operator, put the outputs; alone within its grant."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from types import GeneratorType
from typing import Any

from rolemesh.api.workload import RankContext, Workload
from rolemesh.graph.logical import LogicalGraph, OpCall
from rolemesh.graph.schedule import Activity, role_schedule
from rolemesh.runs.meter import Meter
from rolemesh.runs.operator_failure import OperatorFailed
from rolemesh_durable.protocol.edge import last_call
from rolemesh_durable.protocol.turns import Positions
from rolemesh_durable.rank import status_page as status
from rolemesh_durable.rank.call_start import Admission
from rolemesh_durable.rank.control import Control, Stopping
from rolemesh_durable.rank.edges import Ports
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.in_port import InPort
from rolemesh_durable.rank.out_port import OutPort

__all__ = ["Loop"]

INJECTED = "injected by --chaos"

LOOK_NS = 5_000_000
"""A rank that never waits looks into its inbox this often (stop, commits)."""


class _Call:
    """One operator call of the rank's schedule."""

    __slots__ = ("always", "constants", "id", "inputs", "label", "method", "out", "sink", "streaming")

    def __init__(self, op: OpCall, method: Any, inputs: list[tuple[str, InPort]], out: OutPort | None) -> None:
        self.id, self.label, self.constants, self.streaming = op.id, op.label, op.constants, op.streaming
        self.method, self.inputs, self.out, self.sink = method, inputs, out, op.returns is None
        self.always = False


class Loop:
    """Runs the schedule of one rank."""

    def __init__(
        self,
        workload: Workload,
        ctx: RankContext[Any],
        graph: LogicalGraph,
        *,
        activity: Activity,
        endpoint: Endpoint,
        ports: Ports,
        status_page: status.StatusPage,
        meter: Meter,
        control: Control,
        steps: int,
        boundary: Callable[[int], None] | None = None,
        admission: Admission | None = None,
    ) -> None:
        """`boundary(step)` is called between two steps, when all of `step` is done. Calls wait for `admission`."""
        self._ctx, self._activity, self._endpoint, self._ports = ctx, activity, endpoint, ports
        self._status_page, self._meter, self._control, self._steps = status_page, meter, control, steps
        self._boundary = boundary
        self._calls: list[_Call] = []
        for op in role_schedule(graph, ctx.role):
            call = _Call(op, getattr(workload, op.operator), ports.inputs.get(op.id, []), ports.outputs.get(op.id))
            call.always = activity.always(op.id)
            self._calls.append(call)
        self._admission, self._positions = admission, Positions(graph)
        endpoint.on_idle = self._idle
        control.on_raise = self._inject
        if control.raising:
            self._inject()

    def repeat(self, resume: int) -> None:
        """Repeat the last call up to step `resume` of each operator that returns nothing, in the order they were made.

        So a stateless rank becomes what it was after that step. What they report is dropped.
        """
        found = [(last_call(self._activity, call.id, resume), call) for call in self._calls if call.sink]
        for step, call in sorted(((at, call) for at, call in found if at is not None), key=lambda pair: pair[0]):
            self._ctx.step = step
            self._next(self._positions.repeat(call.id, resume))
            self._run(call, step, repeated=True)
        self._ctx._means, self._ctx._sums, self._ctx._records = {}, {}, {}
        self._meter.computing = self._meter.waiting = self._meter.blocked = 0

    def run(self, start: int = 0) -> int:
        """Run from step `start` to the last, as grants come; return the last finished step.

        Returns early when the agent says stop (`control.stopping` is set). Raises `OperatorFailed` for an exception of
        the workload, `TransportError` for a broken edge.
        """
        fields, control, endpoint, ctx = self._status_page.fields, self._control, self._endpoint, self._ctx
        meter, boundary = self._meter, self._boundary
        finished, looked = start - 1, monotonic_ns()
        fields[status.FINISHED] = finished
        try:
            for step in range(start, self._steps):
                if self._admission is not None:
                    self._next(self._positions.call(self._first(step), step))
                if step > control.granted:
                    fields[status.PHASE], fields[status.EDGE], fields[status.SINCE_NS] = status.IDLE, -1, monotonic_ns()
                    while step > control.granted:
                        endpoint.wait()
                    endpoint.pump()
                ctx.step = fields[status.STEP] = step
                now = looked
                for call in self._calls:
                    if call.always or self._activity.active(call.id, step):
                        if self._admission is not None:
                            self._next(self._positions.call(call.id, step))
                        now = self._run(call, step)
                        if now - looked > LOOK_NS:
                            looked = self._look(now)
                fields[status.BUSY_NS] = meter.busy
                meter.finished(step, now)
                if boundary is not None:
                    boundary(step)
                finished = fields[status.FINISHED] = step
                if now - looked > LOOK_NS:
                    looked = self._look(now)
            meter.close(finished)
            fields[status.OP], fields[status.PHASE], fields[status.EDGE] = -1, status.IDLE, -1
            self._next(self._positions.last(ctx.role, self._steps))
            self._ports.drain()
        except Stopping:
            meter.close(finished)
            endpoint.flush()
        return finished

    def _look(self, now: int) -> int:
        """See what has come. Raises `Stopping`."""
        self._endpoint.flush()
        self._endpoint.pump()
        if self._endpoint.stopping:
            raise Stopping
        return now

    def _admit(self, admission: Admission, call: _Call, step: int) -> None:
        """A call that others wait behind waits for nothing itself: all inputs are there before it, and credits.

        Who it would wait for may need the slot, or an answer from a rank that is in the call.
        """
        if call.streaming:
            for _, port in call.inputs:
                port.await_all(step)
        if call.out is not None:
            call.out.await_credits(step)
        admission.take()
        self._meter.waiting += admission.spent()

    def _inject(self) -> None:
        """Let every operator raise, whichever is next."""

        def fail(**_: Any) -> None:
            raise RuntimeError(f"{INJECTED} (generation {self._ctx.generation})")

        for call in self._calls:
            call.method = fail

    def _first(self, step: int) -> int:
        """The call that has the first turn in `step`: the first that is active; or the last, for the snapshot only."""
        active = (call.id for call in self._calls if call.always or self._activity.active(call.id, step))
        return next(active, self._calls[-1].id)

    def _next(self, position: int) -> None:
        if self._admission is not None:
            self._admission.next(position)
            self._meter.waiting += self._admission.spent()

    def _idle(self) -> bool:
        soon = self._meter.idle()
        if self._admission is None:
            return soon
        self._admission.idle()
        return True

    def _run(self, call: _Call, step: int, *, repeated: bool = False) -> int:
        """One call; returns the time at which the operator ended."""
        fields, meter, ctx = self._status_page.fields, self._meter, self._ctx
        fields[status.OP] = call.id
        try:
            arguments = dict(call.constants)
            for param, port in call.inputs:
                arguments[param] = port.stream(step) if call.streaming else port.take(step)
            if self._admission is not None:
                self._admit(self._admission, call, step)
            began = monotonic_ns()
            fields[status.PHASE], fields[status.EDGE], fields[status.SINCE_NS] = status.COMPUTING, -1, began
            apart = meter.waiting + meter.blocked
            result = call.method(**arguments)
            chunked = type(result) is GeneratorType
            if chunked:
                if call.out is not None:
                    call.out.put_chunks(step, result)
                else:
                    for _ in result:
                        pass
            ended = monotonic_ns()
            busy = ended - began + apart - meter.waiting - meter.blocked
            meter.computing += busy
            meter.busy += busy
            if (ctx._means or ctx._sums or ctx._records) and not repeated:
                meter.collect(call.label)
            if call.out is not None and not chunked:
                call.out.put(step, result)
            for _, port in call.inputs:
                if call.streaming:
                    port.release_stream(step)
                else:
                    port.release(step)
        except Stopping:
            raise
        except BaseException as error:
            raise OperatorFailed(call.label, step, error) from error
        return ended
