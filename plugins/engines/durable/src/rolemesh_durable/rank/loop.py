"""A rank's steps: it takes the inputs, runs the operators and puts the outputs, alone within its grant."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from types import GeneratorType
from typing import Any

from rolemesh.api.workload import Workload
from rolemesh.graph.logical import OpCall
from rolemesh_durable.protocol.rank import page as status
from rolemesh_durable.protocol.rank.control import Control
from rolemesh_durable.protocol.rank.effects import Effects, Stopping
from rolemesh_durable.protocol.rank.extension import RankHooks
from rolemesh_durable.protocol.rank.layout_changes import LayoutChanges
from rolemesh_durable.protocol.rank.machine import Driver, RankMachine
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.protocol.rank.snapshots import SnapshotTaker
from rolemesh_durable.protocol.rank.span import LONG_NS
from rolemesh_durable.rank.port import port_of
from rolemesh_durable.rank.services import Rank
from rolemesh_runtime.operator_failure import OperatorFailed

__all__ = ["Loop", "listens"]

INJECTED = "injected by --chaos"


class _Call:
    """One operator call of the rank's schedule."""

    __slots__ = (
        "always", "constants", "id", "inputs", "label", "maybe_none", "method", "op", "out", "streaming",
    )  # fmt: skip

    def __init__(self, op: OpCall, method: Callable[..., Any], rank: Rank, *, maybe_none: bool) -> None:
        """`maybe_none`: the call may yield nothing."""
        self.op, self.method = op, method
        self.id, self.label, self.constants, self.streaming = op.id, op.label, op.constants, op.streaming
        self.maybe_none = maybe_none
        self.always = rank.job.activity.always(op.id)
        self.connect(rank.ports)

    def connect(self, ports: Ports[Any]) -> None:
        """Use the ports that the rank has for this call now."""
        self.inputs = ports.inputs.get(self.id, [])
        self.out = ports.outputs.get(self.id)


class Loop:
    """The schedule of one rank, which its machine (`RankMachine`) runs on these effects."""

    def __init__(
        self,
        rank: Rank,
        hooks: RankHooks,
        control: Control,
        effects: Effects[Any],
        *,
        boundary: SnapshotTaker | None = None,
        crossing: LayoutChanges | None = None,
    ) -> None:
        """`boundary` takes snapshots between two steps, `crossing` new layouts while the rank waits for a grant."""
        ctx, job = rank.ctx, rank.job
        self._ctx, self._endpoint = ctx, rank.endpoint
        self._status_page, self._meter, self._workload = rank.status_page, rank.meter, rank.workload
        self._control, self._boundary = control, boundary
        self._hooks, self._before_call = hooks, hooks.before_call
        self._calls: list[_Call] = []
        for op in job.graph.of_role(ctx.role):
            method = hooks.wrapped(op, getattr(rank.workload, op.operator))
            self._calls.append(_Call(op, method, rank, maybe_none=hooks.may_yield_nothing(op)))
        self._in_group = ctx.rendezvous is not None
        self._fail_waiting: Callable[[], None] | None = None
        self._port = port_of(ctx)
        self._port.observe(self._progress)
        driver = Driver(
            run=self._run,
            repeat=partial(self._run, repeated=True),
            look=self._look,
            done=rank.meter.finished,
            close=rank.meter.close,
            report=rank.endpoint.report,
            committed=partial(self._tell, "committed, persisted", rank.workload.committed),
            persisted=partial(self._tell, "committed, persisted", rank.workload.persisted),
            drain=partial(self._tell, "drain", rank.workload.drain),
            listens=listens(rank.workload),
        )
        self._machine = RankMachine(self._calls, effects, driver, control, hooks, ports=rank.ports, position=ctx)
        self._machine.follow(boundary, crossing)
        self.hear, self.acknowledge = self._machine.hear, self._machine.acknowledge
        rank.endpoint.attend((*hooks.idle, self._idle), hooks.wait)
        control.attend_fault(self._inject)

    def repeat(self, resume: int) -> None:
        """Repeat the calls that restore a stateless rank to step `resume`; drop their reports."""
        with self._port.without_reports():
            if self._machine.repeat(resume):
                self._meter.restart()

    def run(self, start: int = 0) -> int:
        """Run from step `start` to the last, as grants come. Return the last finished step.

        Return early when the agent asks the rank to stop (`control.stopping` is set). Raise `OperatorFailed` for an
        exception of the workload, and `TransportError` for a broken edge.
        """
        self._tell_finish()
        return self._machine.run(start)

    def _tell_finish(self) -> None:
        """If the workload wants the job to finish, have the machine report it."""
        if reason := self._port.take_finish():
            self._machine.finish(reason)

    def _tell(self, label: str, hook: Callable[[Any], None], news: object) -> None:
        """Call a hook of the workload."""
        try:
            hook(news)
        except Stopping:
            raise
        except BaseException as error:
            raise OperatorFailed(label, self._ctx.step, error) from error

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
        """Make the next operator raise. A rank that only serves calls raises while it waits."""

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
        self._tell_finish()
        soon = self._meter.idle()
        if self._boundary is not None and self._boundary.owed >= 0:
            soon = self._settle(self._boundary) or soon
        return soon

    def _settle(self, boundary: SnapshotTaker) -> bool:
        step, now = boundary.owed, self._ctx.step
        self._machine.enter(step)
        try:
            return boundary.settle()
        except Stopping:
            raise
        except BaseException as error:
            raise OperatorFailed("snapshot", step, error) from error
        finally:
            self._machine.enter(now)

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
                self._boundary.calls()
            if self._in_group:
                # Ranks of a group wait for each other inside a call and send no acknowledgement there. So send those
                # that were put off: a producer may need them to unblock another rank of the group.
                self._endpoint.flush()
            began = meter.begin()
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
            meter.computed(busy, ended)
            if ended - began >= LONG_NS:
                meter.span(status.COMPUTING, -1, began, ended)
            fields[status.COMPUTED_NS] = meter.busy + meter.served
            if (reports.means or reports.sums or reports.records) and not repeated:
                meter.collect(call.label)
            if reports.finishing:
                self._tell_finish()
            if fields[status.DONE] >= 0 or fields[status.ANSWERED]:
                fields[status.DONE], fields[status.TOTAL], fields[status.ANSWERED] = -1, 0, 0
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


def listens(workload: Workload) -> bool:
    """Return True if the workload wants to know the committed or persisted step, also while it waits in an operator."""
    cls = type(workload)
    return cls.committed is not Workload.committed or cls.persisted is not Workload.persisted
