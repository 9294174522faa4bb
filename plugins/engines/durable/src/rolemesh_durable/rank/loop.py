"""A rank's machine in its process: the workload, its reports, and the times of its operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import Any

from rolemesh.api.workload import Workload
from rolemesh_dataplane.lending import Lender
from rolemesh_durable.protocol.delivery.exact import OriginValues
from rolemesh_durable.protocol.rank import page as status
from rolemesh_durable.protocol.rank.control import Control
from rolemesh_durable.protocol.rank.effects import Effects, Stopping
from rolemesh_durable.protocol.rank.extension import RankHooks
from rolemesh_durable.protocol.rank.machine import Call, Driver, RankMachine
from rolemesh_durable.protocol.rank.snapshots import SnapshotTaker
from rolemesh_durable.protocol.rank.span import LONG_NS
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.port import port_of
from rolemesh_durable.rank.services import Rank
from rolemesh_runtime.operator_failure import OperatorFailed

__all__ = ["Loop", "listens"]

INJECTED = "injected by --chaos"


class Loop:
    """The schedule of one rank, which its machine (`RankMachine`) runs on these effects."""

    def __init__(
        self,
        rank: Rank,
        endpoint: Endpoint,
        hooks: RankHooks,
        control: Control,
        effects: Effects[Any],
        *,
        taker: SnapshotTaker | None = None,
        origin: Callable[[str], OriginValues],
    ) -> None:
        """`taker` takes snapshots between two steps. ``origin(folder)`` returns a persisted snapshot."""
        ctx, workload = rank.ctx, rank.workload
        self._ctx, self._waits, self._taker = ctx, effects.waits, taker
        self._fields, self._meter, self._control = rank.status_page.fields, rank.meter, control
        self._lender, self._out_edges = endpoint.lender, rank.ports.out_edges
        self._fail_waiting: Callable[[], None] | None = None
        self._port = port_of(ctx)
        self._port.observe(self._progress)
        began, ended = _timed(rank, endpoint.lender, self._tell_finish)
        driver = Driver(
            operator=lambda op: getattr(workload, op.operator),
            origin=origin,
            repeating=self._port.without_reports,
            began=began,
            ended=ended,
            look=self._look,
            done=rank.meter.finished,
            close=rank.meter.close,
            cut=rank.meter.advanced,
            say_again=rank.meter.say_again,
            report=endpoint.report,
            committed=partial(self._tell, "committed, persisted", workload.committed),
            persisted=partial(self._tell, "committed, persisted", workload.persisted),
            drain=partial(self._tell, "drain", workload.drain),
            listens=listens(workload),
        )
        self._machine = RankMachine(effects, driver, control, hooks, ports=rank.ports, position=ctx, taker=taker)
        self.begin, self.hear, self.acknowledge = self._machine.begin, self._machine.hear, self._machine.acknowledge
        endpoint.attend((*hooks.idle, self._idle), hooks.wait)
        control.attend_fault(self._inject)

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
        self._waits.look()
        return now

    def _progress(self, done: int, total: int) -> bool:
        self._fields[status.TOTAL], self._fields[status.DONE] = total, done
        return self._control.due >= self._ctx.step

    def _inject(self) -> None:
        """Make the next operator raise. A rank that only serves calls raises while it waits."""

        def fail(**_: Any) -> None:
            raise RuntimeError(f"{INJECTED} (generation {self._ctx.generation})")

        self._fail_waiting = None if self._machine.calls else fail
        self._machine.replace(fail)

    def _idle(self) -> bool:
        if self._fail_waiting is not None:
            try:
                self._fail_waiting()
            except RuntimeError as error:
                raise OperatorFailed("its services", self._ctx.step, error) from error
        self._tell_finish()
        self._lender.idle(self._out_edges)
        soon = self._meter.idle()
        return soon if self._taker is None or self._taker.owed < 0 else self._machine.settle() or soon


def _timed(
    rank: Rank, lender: Lender, tell_finish: Callable[[], None]
) -> tuple[Callable[[], None], Callable[[Call, bool], int]]:
    """Return `Driver.began` and `Driver.ended`, which every call pays for."""
    fields, meter, reports, apart = rank.status_page.fields, rank.meter, port_of(rank.ctx), 0

    def begin() -> None:
        nonlocal apart
        if lender.shown:
            lender.take_back()
        fields[status.PHASE], fields[status.EDGE], fields[status.SINCE_NS] = status.COMPUTING, -1, meter.begin()
        apart = meter.waiting + meter.blocked

    def end(call: Call, repeated: bool) -> int:
        ended, began = monotonic_ns(), meter.began
        meter.computed(ended - began + apart - meter.waiting - meter.blocked, ended)
        if ended - began >= LONG_NS:
            meter.span(status.COMPUTING, -1, began, ended)
        fields[status.COMPUTED_NS] = meter.busy + meter.served
        if (reports.means or reports.sums or reports.records) and not repeated:
            meter.collect(call.op.label)
        if reports.finishing:
            tell_finish()
        if fields[status.DONE] >= 0 or fields[status.ANSWERED]:
            fields[status.DONE], fields[status.TOTAL], fields[status.ANSWERED] = -1, 0, 0
        return ended

    return begin, end


def listens(workload: Workload) -> bool:
    """Return True if the workload wants to know the committed or persisted step, also while it waits in an operator."""
    cls = type(workload)
    return cls.committed is not Workload.committed or cls.persisted is not Workload.persisted
