"""A rank's steps: take the inputs, run the operator, put the outputs; alone within its grant."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from types import GeneratorType
from typing import Any

from rolemesh.api.workload import RankContext, Workload
from rolemesh.graph.logical import LogicalGraph, OpCall
from rolemesh.graph.schedule import Activity
from rolemesh.runs.operator_failure import OperatorFailed
from rolemesh_durable.protocol.delivery import InPort
from rolemesh_durable.protocol.edge import last_call
from rolemesh_durable.protocol.messages import RankFinish, Watermarks
from rolemesh_durable.protocol.rank import page as status
from rolemesh_durable.protocol.rank.effects import Stopping
from rolemesh_durable.protocol.rank.extension import RankHooks
from rolemesh_durable.protocol.rank.mates import Mates
from rolemesh_durable.protocol.rank.out_port import OutPort
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.protocol.turns import Positions
from rolemesh_durable.rank.boundary import Boundary
from rolemesh_durable.rank.call_start import Admission
from rolemesh_durable.rank.control import Control
from rolemesh_durable.rank.crossing import Crossing
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.event_loop import Tasks
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.port import port_of
from rolemesh_durable.rank.shared_rows import SharedRows
from rolemesh_durable.rank.status_page import StatusPage

__all__ = ["Loop"]

INJECTED = "injected by --chaos"

LOOK_NS = 5_000_000
"""A rank that never waits looks into its inbox this often (stop, commits)."""


class _Call:
    """One operator call of the rank's schedule."""

    __slots__ = (
        "always", "constants", "id", "inputs", "label", "mates", "method", "op", "out", "sink", "streaming",
    )  # fmt: skip

    def __init__(
        self, op: OpCall, method: Any, inputs: list[tuple[str, InPort]], out: OutPort[Any] | None, mates: Mates | None
    ) -> None:
        self.id, self.label, self.constants, self.streaming = op.id, op.label, op.constants, op.streaming
        self.method, self.inputs, self.out, self.sink = method, inputs, out, op.returns is None
        self.op, self.mates, self.always = op, mates, False


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
        ports: Ports[Any],
        status_page: StatusPage,
        meter: Meter,
        control: Control,
        steps: int,
        hooks: RankHooks,
        tasks: Tasks,
        boundary: Boundary | None = None,
        admission: Admission | None = None,
        crossing: Crossing | None = None,
    ) -> None:
        """`boundary` is called between two steps, when all of a step is done. Calls wait for `admission`."""
        self._ctx, self._activity, self._endpoint, self._ports = ctx, activity, endpoint, ports
        self._status_page, self._meter, self._control, self._workload = status_page, meter, control, workload
        control.last = min(control.last, steps - 1)
        self._boundary, self._step_done = boundary, hooks.step_done
        self._calls: list[_Call] = []
        for op in graph.of_role(ctx.role):
            method, mates = getattr(workload, op.operator), ports.mates.get(op.id)
            if mates is not None:
                method = SharedRows(mates, endpoint, status_page, meter).shared(method, ctx, op, tasks)
            method = hooks.wrapped(op, method)
            call = _Call(op, method, ports.inputs.get(op.id, []), ports.outputs.get(op.id), mates)
            call.always = activity.always(op.id)
            self._calls.append(call)
        self._crossing = crossing
        self._admission, self._positions = admission, Positions(graph)
        self._in_group = ctx.rendezvous is not None
        self._finish: RankFinish | None = None
        self._fail_waiting: Callable[[], None] | None = None
        self._committed = self._persisted = -1
        self._heard: Watermarks | None = None
        self._port = port_of(ctx)
        self._port.observe(self._progress)
        endpoint.attend((*hooks.idle, self._idle), hooks.wait)
        control.on_raise = self._inject
        control.on_adopted.append(self._say_finish)
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
        self._port.clear()
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
            self._tell_finish()
            while finished < control.last:
                step = finished + 1
                if self._admission is not None and self._calls:
                    self._next(self._positions.call(self._first(step), step))
                if step > control.granted:
                    fields[status.PHASE], fields[status.EDGE], fields[status.SINCE_NS] = status.IDLE, -1, monotonic_ns()
                    while (self._crosses(finished) or control.granted < step) and step <= control.last:
                        endpoint.wait()
                        self.heard()
                    endpoint.pump()
                    if step > control.last:
                        break
                ctx.step = fields[status.STEP] = step
                now = looked
                for call in self._calls:
                    if call.always or self._activity.active(call.id, step):
                        if self._admission is not None:
                            self._next(self._positions.call(call.id, step))
                        now = self._run(call, step)
                        if now - looked > LOOK_NS:
                            looked = self._look(now)
                for step_done in self._step_done:
                    step_done(step, step >= control.last or step == control.pause)
                fields[status.BUSY_NS] = meter.busy
                meter.finished(step, now)
                if boundary is not None:
                    if step == control.pause:
                        self._drain(step)
                    if self._finish is not None:
                        self._await_journal()
                    boundary(step)
                finished = fields[status.FINISHED] = step
                if control.advance is not self._heard:
                    self.heard()
                if now - looked > LOOK_NS:
                    looked = self._look(now)
            meter.close(finished)
            fields[status.OP], fields[status.PHASE], fields[status.EDGE] = -1, status.IDLE, -1
            self._next(self._positions.last(ctx.role, finished + 1))
            self._ports.end(finished)
            self._ports.drain(finished)
        except Stopping:
            meter.close(finished)
            endpoint.flush()
        return finished

    def _crosses(self, finished: int) -> bool:
        """Whether a new layout, if there is one, keeps the rank from going on after step `finished`."""
        if self._crossing is None:
            return False
        if self._crossing.follow(finished):
            for call in self._calls:
                call.inputs, call.out = self._ports.inputs.get(call.id, []), self._ports.outputs.get(call.id)
        return not self._crossing.may_go_on

    def _tell_finish(self) -> None:
        """The workload wants the job to finish: tell, until a snapshot follows that is of after it has."""
        ctx, port = self._ctx, self._port
        if port.finishing:
            self._finish = RankFinish(ctx.role, ctx.rank, ctx.generation, port.finishing)
            port.finishing = ""
            self._say_finish()

    def _say_finish(self) -> None:
        if self._finish is not None:
            self._endpoint.report(self._finish)

    def _await_journal(self) -> None:
        """Who is restored to after this step does not say `finish` again: it must have been journalled before."""
        while self._control.advance is None or not self._control.advance.finishing:
            self._endpoint.wait()

    def heard(self) -> None:
        """Tell the workload how far the job is, if something has come of that."""
        advance = self._control.advance
        if advance is not None and advance is not self._heard:
            self._heard = advance
            self.acknowledge(advance.committed, advance.persisted)

    def acknowledge(self, committed: int, persisted: int) -> None:
        """The job is committed and persisted so far: tell the workload what is new of that."""
        try:
            if committed > self._committed:
                self._committed = committed
                self._workload.committed(committed)
            if persisted > self._persisted:
                self._persisted = persisted
                self._workload.persisted(persisted)
        except Stopping:
            raise
        except BaseException as error:
            raise OperatorFailed("committed, persisted", self._ctx.step, error) from error

    def _drain(self, step: int) -> None:
        """All ranks wait after this step: tell the workload if that is because its node leaves."""
        advance = self._control.advance
        left_s = advance.draining.get(self._endpoint.site.node) if advance is not None else None
        if left_s is not None:
            try:
                self._workload.drain(left_s)
            except Stopping:
                raise
            except BaseException as error:
                raise OperatorFailed("drain", step, error) from error

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

    def _progress(self, done: int, total: int) -> bool:
        fields = self._status_page.fields
        fields[status.TOTAL], fields[status.DONE] = total, done
        return self._control.due >= self._ctx.step

    def _inject(self) -> None:
        """Make the next operator raise. A rank without operators, of services alone, raises while it waits."""

        def fail(**_: Any) -> None:
            raise RuntimeError(f"{INJECTED} (generation {self._ctx.generation})")

        self._fail_waiting = None if self._calls else fail

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
        if self._fail_waiting is not None:
            try:
                self._fail_waiting()
            except RuntimeError as error:
                raise OperatorFailed("its services", self._ctx.step, error) from error
        soon = self._meter.idle()
        if self._boundary is not None and self._boundary.owed >= 0:
            soon = self._settle(self._boundary) or soon
        if self._admission is None:
            return soon
        self._admission.idle()
        return True

    def _settle(self, boundary: Boundary) -> bool:
        ctx, step = self._ctx, boundary.owed
        now, ctx.step = ctx.step, step
        try:
            return boundary.settle()
        except Stopping:
            raise
        except BaseException as error:
            raise OperatorFailed("snapshot", step, error) from error
        finally:
            ctx.step = now

    def _run(self, call: _Call, step: int, *, repeated: bool = False) -> int:
        """One call; returns the time at which the operator ended."""
        fields, meter, reports = self._status_page.fields, self._meter, self._port
        fields[status.OP] = call.id
        try:
            arguments = dict(call.constants)
            for param, port in call.inputs:
                arguments[param] = port.stream(step, call.streaming) if call.streaming else port.take(step)
            if call.mates is not None:
                call.mates.await_told()
            if self._admission is not None:
                self._admit(self._admission, call, step)
            if self._boundary is not None:
                if self._boundary.told:
                    self._settle(self._boundary)
                self._boundary.owed = -1
            if self._in_group:
                # Ranks of a group wait for each other inside a call, where none sends an acknowledgement that was put
                # off. A mate may be blocked until a producer has it.
                self._endpoint.flush()
            began = monotonic_ns()
            fields[status.PHASE], fields[status.EDGE], fields[status.SINCE_NS] = status.COMPUTING, -1, began
            apart = meter.waiting + meter.blocked
            result = call.method(**arguments)
            chunked = type(result) is GeneratorType
            if chunked:
                if call.out is not None:
                    call.out.put_chunks(step, result, maybe_none=call.mates is not None)
                else:
                    for _ in result:
                        pass
            ended = monotonic_ns()
            busy = ended - began + apart - meter.waiting - meter.blocked
            meter.computing += busy
            fields[status.COMPUTED_NS] = meter.busy = meter.busy + busy
            if (reports.means or reports.sums or reports.records) and not repeated:
                meter.collect(call.label)
            if reports.finishing:
                self._tell_finish()
            if fields[status.DONE] >= 0:
                fields[status.DONE], fields[status.TOTAL] = -1, 0
            if call.out is not None and not chunked:
                call.out.put(step, result)
            for _, port in call.inputs:
                if call.streaming:
                    port.release_stream(step)
                else:
                    port.release(step)
        except (Stopping, OperatorFailed):
            raise
        except BaseException as error:
            raise OperatorFailed(call.label, step, error) from error
        return ended
