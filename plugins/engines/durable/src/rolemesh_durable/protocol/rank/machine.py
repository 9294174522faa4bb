"""The control flow of a rank: grants, steps, snapshots, layout changes and the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rolemesh.graph.logical import OpCall
from rolemesh_durable.protocol.edge import last_call
from rolemesh_durable.protocol.messages import RankFinish, Watermarks
from rolemesh_durable.protocol.rank.control import Control
from rolemesh_durable.protocol.rank.effects import Effects, Stopping
from rolemesh_durable.protocol.rank.extension import RankHooks
from rolemesh_durable.protocol.rank.layout_changes import LayoutChanges
from rolemesh_durable.protocol.rank.page import BUSY_NS, COMPUTED_NS, EDGE, FINISHED, IDLE, OP, PHASE, SINCE_NS, STEP
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.protocol.rank.snapshots import SnapshotTaker

__all__ = ["Call", "Driver", "RankMachine"]

LOOK_NS = 5_000_000
"""ns after which a rank that never waits handles the messages that have come, such as a request to stop."""


class Call(Protocol):
    """One operator call of the rank's schedule."""

    @property
    def id(self) -> int:
        """The number of the call in the flow."""

    @property
    def op(self) -> OpCall:
        """The call in the flow."""

    @property
    def always(self) -> bool:
        """True if the call runs in every step."""

    def connect(self, ports: Ports[Any]) -> None:
        """Use the ports that the rank has for this call now."""


class Position(Protocol):
    """The step at which the workload is."""

    step: int


@dataclass(frozen=True, slots=True)
class Driver:
    """The effects of the steps. Each function that calls the workload raises what the workload raises."""

    run: Callable[[Any, int], int]
    """``run(call, step)`` runs a call, and returns the time in ns at which its operator ended."""
    repeat: Callable[[Any, int], int]
    """As `run`, for a call whose result every consumer has, and whose reports count already."""
    look: Callable[[int], int]
    """``look(now)`` handles the messages that have come, and returns `now`. Raises `Stopping`."""
    done: Callable[[int, int], None]
    """``done(step, now)``: all calls of `step` are over, so its line of metrics is complete."""
    close: Callable[[int], None]
    """``close(step)``: the rank runs nothing after `step`, so it sends all lines of metrics."""
    report: Callable[[RankFinish], None]
    """Sends a message to the agent."""
    committed: Callable[[int], None]
    """Tells the workload the newest committed step."""
    persisted: Callable[[int], None]
    """Tells the workload the newest persisted step."""
    drain: Callable[[float], None]
    """Tells the workload how many seconds are left until its node leaves."""
    listens: bool
    """True if the workload wants to know the progress also while the rank waits for a grant."""


class RankMachine:
    """Runs the schedule of one rank, step by step, as far as its grant goes."""

    def __init__(
        self,
        calls: Sequence[Call],
        effects: Effects[Any],
        driver: Driver,
        control: Control,
        hooks: RankHooks,
        *,
        ports: Ports[Any],
        position: Position,
    ) -> None:
        """`position.step` is the step that runs."""
        self._calls, self._ports, self._position, self._driver = calls, ports, position, driver
        self._page, self._waits, self._mail, self._now = effects.page.fields, effects.waits, effects.mail, effects.now
        self._control, self._hooks = control, hooks
        self._taker: SnapshotTaker | None = None
        self._changes: LayoutChanges | None = None
        self._finish: RankFinish | None = None
        self._heard: Watermarks | None = None
        self._committed = self._persisted = -1
        control.end_at(ports.job.steps - 1)
        control.on_adopted.append(self._report_finish)

    def follow(self, taker: SnapshotTaker | None, changes: LayoutChanges | None) -> None:
        """From now on `taker` takes snapshots between two steps, and `changes` takes up new layouts."""
        self._taker, self._changes = taker, changes

    def enter(self, step: int) -> None:
        """Set the step that the workload sees."""
        self._position.step = step

    def run(self, start: int = 0) -> int:
        """Run from step `start` to the last, as grants come. Return the last finished step.

        Return early when the agent asks the rank to stop (`Control.stopping`). Raise what the effects raise.
        """
        fields, control, position, taker = self._page, self._control, self._position, self._taker
        run, look, done = self._driver.run, self._driver.look, self._driver.done
        calls, active = self._calls, self._ports.job.activity.active
        before_step, before_inputs, step_done = (
            self._hooks.before_step,
            self._hooks.before_inputs,
            self._hooks.step_done,
        )
        finished, looked = start - 1, self._now()
        fields[FINISHED] = finished
        try:
            while finished < control.last:
                step = finished + 1
                for hook in before_step:
                    hook(step)
                if step > control.granted and not self._await_grant(finished):
                    break
                position.step = fields[STEP] = step
                now = looked
                for call in calls:
                    if call.always or active(call.id, step):
                        for hook in before_inputs:
                            hook(call.op, step)
                        now = run(call, step)
                        if now - looked > LOOK_NS:
                            looked = look(now)
                for hook in step_done:
                    hook(step, step >= control.last or step == control.pause)
                fields[BUSY_NS] = fields[COMPUTED_NS]
                done(step, now)
                if taker is not None:
                    self._take_snapshot(taker, step)
                finished = fields[FINISHED] = step
                if control.advance is not self._heard:
                    self.hear()
                if now - looked > LOOK_NS:
                    looked = look(now)
            self._end(finished)
        except Stopping:
            self._driver.close(finished)
            self._mail.flush()
        return finished

    def repeat(self, resume: int) -> bool:
        """Repeat the last call up to step `resume` of each operator that returns nothing, in the order of the steps.

        This restores a stateless rank to what it was after that step. Return whether the rank's role needs that.
        """
        job = self._ports.job
        if resume < 0 or self._mail.site.role in job.unrepeated:
            return False
        sinks = [(last_call(job.activity, call.id, resume), call) for call in self._calls if call.op.returns is None]
        for step, call in sorted(((at, call) for at, call in sinks if at is not None), key=lambda pair: pair[0]):
            self.enter(step)
            for hook in self._hooks.before_repeat:
                hook(call.op, resume)
            self._driver.repeat(call, step)
        return True

    def finish(self, reason: str) -> None:
        """The workload wants the job to finish: tell the agent, and each of its next incarnations."""
        site = self._mail.site
        self._finish = RankFinish(site.role, site.rank, site.generation, reason)
        self._report_finish()

    def hear(self) -> None:
        """Tell the workload the progress of the job, if there is any since the last call."""
        advance = self._control.advance
        if advance is not None and advance is not self._heard:
            self._heard = advance
            self.acknowledge(advance.committed, advance.persisted)

    def acknowledge(self, committed: int, persisted: int) -> None:
        """Tell the workload the newest committed and persisted steps, if they are new."""
        if committed > self._committed:
            self._committed = committed
            self._driver.committed(committed)
        if persisted > self._persisted:
            self._persisted = persisted
            self._driver.persisted(persisted)

    def _await_grant(self, finished: int) -> bool:
        """Wait until the rank may run the step after `finished`; return False if there is none."""
        fields, control, changes, step = self._page, self._control, self._changes, finished + 1
        fields[PHASE], fields[EDGE], fields[SINCE_NS] = IDLE, -1, self._now()

        def may_run() -> bool:
            return step > control.last or (control.granted >= step and (changes is None or changes.may_go_on))

        def is_news() -> bool:
            if may_run() or (changes is not None and changes.is_due(finished)):
                return True
            return self._driver.listens and control.advance is not self._heard

        self._take_up_layout(finished)
        while not may_run():
            self._waits.until(is_news, IDLE)
            self.hear()
            self._take_up_layout(finished)
        self._mail.pump()
        return step <= control.last

    def _take_up_layout(self, finished: int) -> None:
        if self._changes is not None and self._changes.follow(finished):
            for call in self._calls:
                call.connect(self._ports)

    def _take_snapshot(self, taker: SnapshotTaker, step: int) -> None:
        """Take the snapshot of `step` if one is due; first tell the workload if its node leaves after the step.

        A rank that is restored to this step does not repeat `finish`, so the master must have journalled it before.
        """
        control = self._control
        advance = control.advance
        if step == control.pause and advance is not None:
            left_s = advance.draining.get(self._mail.site.node)
            if left_s is not None:
                self._driver.drain(left_s)
        if self._finish is not None:
            self._waits.until(lambda: control.advance is not None and control.advance.finishing, IDLE)
        taker.after(step)

    def _end(self, finished: int) -> None:
        """After the last step, `finished`: wait until all consumers have received their values."""
        fields = self._page
        self._driver.close(finished)
        fields[OP], fields[PHASE], fields[EDGE], fields[SINCE_NS] = -1, IDLE, -1, self._now()
        for hook in self._hooks.steps_end:
            hook(finished)
        self._ports.end(finished)
        self._ports.drain(finished)

    def _report_finish(self) -> None:
        if self._finish is not None:
            self._driver.report(self._finish)
