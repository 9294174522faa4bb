"""A rank's steps: it takes the inputs, runs the operators and puts the outputs, alone within its grant."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from types import GeneratorType
from typing import Any

from rolemesh.graph.logical import OpCall
from rolemesh.runs.operator_failure import OperatorFailed
from rolemesh_durable.protocol.edge import last_call
from rolemesh_durable.protocol.messages import RankFinish, Watermarks
from rolemesh_durable.protocol.rank import page as status
from rolemesh_durable.protocol.rank.control import Control
from rolemesh_durable.protocol.rank.effects import Stopping
from rolemesh_durable.protocol.rank.extension import RankHooks
from rolemesh_durable.protocol.rank.layout_changes import LayoutChanges
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.protocol.rank.snapshots import SnapshotTaker
from rolemesh_durable.rank.port import port_of
from rolemesh_durable.rank.services import Rank

__all__ = ["Loop"]

INJECTED = "injected by --chaos"

LOOK_NS = 5_000_000
"""A rank that never waits looks into its inbox this often (stop, commits)."""


class _Call:
    """One operator call of the rank's schedule."""

    __slots__ = (
        "always", "constants", "id", "inputs", "label", "maybe_none", "method", "op", "out", "sink", "streaming",
    )  # fmt: skip

    def __init__(self, op: OpCall, method: Callable[..., Any], rank: Rank, *, maybe_none: bool) -> None:
        """`maybe_none`: the call may yield nothing."""
        self.op, self.method = op, method
        self.id, self.label, self.constants, self.streaming = op.id, op.label, op.constants, op.streaming
        self.sink = op.returns is None
        self.maybe_none = maybe_none
        self.always = rank.job.activity.always(op.id)
        self.connect(rank.ports)

    def connect(self, ports: Ports[Any]) -> None:
        """Use the ports that the rank has for this call now."""
        self.inputs = ports.inputs.get(self.id, [])
        self.out = ports.outputs.get(self.id)


class Loop:
    """Runs the schedule of one rank."""

    def __init__(
        self,
        rank: Rank,
        hooks: RankHooks,
        control: Control,
        *,
        boundary: SnapshotTaker | None = None,
        crossing: LayoutChanges | None = None,
    ) -> None:
        """`boundary` takes snapshots between two steps, `crossing` new layouts while the rank waits for a grant."""
        ctx, job = rank.ctx, rank.job
        self._ctx, self._activity, self._endpoint, self._ports = ctx, job.activity, rank.endpoint, rank.ports
        self._status_page, self._meter, self._workload = rank.status_page, rank.meter, rank.workload
        self._control, self._boundary, self._crossing = control, boundary, crossing
        control.last = min(control.last, job.steps - 1)
        self._hooks, self._before_inputs, self._before_call = hooks, hooks.before_inputs, hooks.before_call
        self._calls: list[_Call] = []
        for op in job.graph.of_role(ctx.role):
            method = hooks.wrapped(op, getattr(rank.workload, op.operator))
            self._calls.append(_Call(op, method, rank, maybe_none=hooks.may_yield_nothing(op)))
        self._in_group = ctx.rendezvous is not None
        self._finish: RankFinish | None = None
        self._fail_waiting: Callable[[], None] | None = None
        self._committed = self._persisted = -1
        self._heard: Watermarks | None = None
        self._port = port_of(ctx)
        self._port.observe(self._progress)
        rank.endpoint.attend((*hooks.idle, self._idle), hooks.wait)
        control.on_raise = self._inject
        control.on_adopted.append(self._say_finish)
        if control.raising:
            self._inject()

    def repeat(self, resume: int) -> None:
        """Repeat the last call up to step `resume` of each operator that returns nothing, in the order of the steps.

        This restores a stateless rank to what it was after that step. The loop drops what the calls report.
        """
        found = [(last_call(self._activity, call.id, resume), call) for call in self._calls if call.sink]
        for step, call in sorted(((at, call) for at, call in found if at is not None), key=lambda pair: pair[0]):
            self._ctx.step = step
            for before_repeat in self._hooks.before_repeat:
                before_repeat(call.op, resume)
            self._run(call, step, repeated=True)
        self._port.clear()
        self._meter.restart()

    def run(self, start: int = 0) -> int:
        """Run from step `start` to the last, as grants come. Return the last finished step.

        Return early when the agent asks the rank to stop (`control.stopping` is set). Raise `OperatorFailed` for an
        exception of the workload, and `TransportError` for a broken edge.
        """
        fields, control, ctx = self._status_page.fields, self._control, self._ctx
        meter, boundary, activity = self._meter, self._boundary, self._activity
        before_step, before_inputs, step_done = self._hooks.before_step, self._before_inputs, self._hooks.step_done
        finished, looked = start - 1, monotonic_ns()
        fields[status.FINISHED] = finished
        try:
            self._tell_finish()
            while finished < control.last:
                step = finished + 1
                for hook in before_step:
                    hook(step)
                if step > control.granted and not self._await_grant(finished):
                    break
                ctx.step = fields[status.STEP] = step
                now = looked
                for call in self._calls:
                    if call.always or activity.active(call.id, step):
                        for hook in before_inputs:
                            hook(call.op, step)
                        now = self._run(call, step)
                        if now - looked > LOOK_NS:
                            looked = self._look(now)
                for hook in step_done:
                    hook(step, step >= control.last or step == control.pause)
                fields[status.BUSY_NS] = meter.busy
                meter.finished(step, now)
                if boundary is not None:
                    self._take_snapshot(boundary, step)
                finished = fields[status.FINISHED] = step
                if control.advance is not self._heard:
                    self.heard()
                if now - looked > LOOK_NS:
                    looked = self._look(now)
            meter.close(finished)
            fields[status.OP], fields[status.PHASE], fields[status.EDGE] = -1, status.IDLE, -1
            for hook in self._hooks.steps_end:
                hook(finished)
            self._ports.end(finished)
            self._ports.drain(finished)
        except Stopping:
            meter.close(finished)
            self._endpoint.flush()
        return finished

    def _await_grant(self, finished: int) -> bool:
        """Wait until the rank may run the step after `finished`; return False if there is none."""
        fields, control, endpoint, step = self._status_page.fields, self._control, self._endpoint, finished + 1
        fields[status.PHASE], fields[status.EDGE], fields[status.SINCE_NS] = status.IDLE, -1, monotonic_ns()
        while (self._crosses(finished) or control.granted < step) and step <= control.last:
            endpoint.wait()
            self.heard()
        endpoint.pump()
        return step <= control.last

    def _take_snapshot(self, boundary: SnapshotTaker, step: int) -> None:
        """Take the snapshot of `step` if one is due; first tell the workload if its node leaves after the step."""
        if step == self._control.pause:
            self._drain(step)
        if self._finish is not None:
            self._await_journal()
        boundary.after(step)

    def _crosses(self, finished: int) -> bool:
        """Whether a new layout, if there is one, keeps the rank from going on after step `finished`."""
        if self._crossing is None:
            return False
        if self._crossing.follow(finished):
            for call in self._calls:
                call.connect(self._ports)
        return not self._crossing.may_go_on

    def _tell_finish(self) -> None:
        """Tell the agent if the workload wants the job to finish, and again until a later snapshot exists."""
        ctx, reason = self._ctx, self._port.take_finish()
        if reason:
            self._finish = RankFinish(ctx.role, ctx.rank, ctx.generation, reason)
            self._say_finish()

    def _say_finish(self) -> None:
        if self._finish is not None:
            self._endpoint.report(self._finish)

    def _await_journal(self) -> None:
        """Wait until the master has journalled `finish`: a rank that is restored after this step does not repeat it."""
        while self._control.advance is None or not self._control.advance.finishing:
            self._endpoint.wait()

    def heard(self) -> None:
        """Tell the workload the progress of the job, if there is any since the last call."""
        advance = self._control.advance
        if advance is not None and advance is not self._heard:
            self._heard = advance
            self.acknowledge(advance.committed, advance.persisted)

    def acknowledge(self, committed: int, persisted: int) -> None:
        """Tell the workload which steps are committed and persisted, if they are new."""
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
        """Tell the workload if all ranks stop after this step because the node leaves."""
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
        """Handle the messages that have come; return `now`. Raises `Stopping`."""
        self._endpoint.flush()
        self._endpoint.pump()
        if self._endpoint.stopping:
            raise Stopping
        return now

    def _progress(self, done: int, total: int) -> bool:
        fields = self._status_page.fields
        fields[status.TOTAL], fields[status.DONE] = total, done
        return self._control.due >= self._ctx.step

    def _inject(self) -> None:
        """Make the next operator raise. A rank that has only services raises while it waits."""

        def fail(**_: Any) -> None:
            raise RuntimeError(f"{INJECTED} (generation {self._ctx.generation})")

        self._fail_waiting = None if self._calls else fail

        for call in self._calls:
            call.method = fail

    def _idle(self) -> bool:
        if self._fail_waiting is not None:
            try:
                self._fail_waiting()
            except RuntimeError as error:
                raise OperatorFailed("its services", self._ctx.step, error) from error
        soon = self._meter.idle()
        if self._boundary is not None and self._boundary.owed >= 0:
            soon = self._settle(self._boundary) or soon
        return soon

    def _settle(self, boundary: SnapshotTaker) -> bool:
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
        """Run one call; return the time at which the operator ended."""
        fields, meter, reports = self._status_page.fields, self._meter, self._port
        fields[status.OP] = call.id
        try:
            arguments = dict(call.constants)
            for param, port in call.inputs:
                arguments[param] = port.stream(step, call.streaming) if call.streaming else port.take(step)
            for hook in self._before_call:
                hook(call.op, step)
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
                    call.out.put_chunks(step, result, maybe_none=call.maybe_none)
                else:
                    for _ in result:
                        pass
            ended = monotonic_ns()
            busy = ended - began + apart - meter.waiting - meter.blocked
            meter.computing += busy
            meter.busy += busy
            fields[status.COMPUTED_NS] = meter.busy
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
