"""The control flow of a rank: its begin, grants, steps, calls, snapshots, layout changes and the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import GeneratorType
from typing import Any, Protocol

from rolemesh.graph.logical import OpCall
from rolemesh_durable.protocol.delivery.exact import OriginValues
from rolemesh_durable.protocol.edge import last_call
from rolemesh_durable.protocol.messages import Connect, RankFinish, RankLaunch, Watermarks
from rolemesh_durable.protocol.rank.control import Control
from rolemesh_durable.protocol.rank.effects import Effects, Stopping
from rolemesh_durable.protocol.rank.extension import RankHooks
from rolemesh_durable.protocol.rank.layout_changes import LayoutChanges
from rolemesh_durable.protocol.rank.master_mail import MasterMail
from rolemesh_durable.protocol.rank.page import BUSY_NS, COMPUTED_NS, FINISHED, IDLE, OP, STEP
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.protocol.rank.snapshots import SnapshotTaker
from rolemesh_runtime.operator_failure import OperatorFailed

__all__ = ["Call", "Driver", "RankMachine"]

LOOK_NS = 5_000_000
"""ns after which a rank that never waits handles the messages that have come, such as a request to stop."""


class Call:
    """One operator call of the rank's schedule."""

    __slots__ = ("always", "constants", "id", "inputs", "maybe_none", "method", "op", "out", "streaming")

    def __init__(self, op: OpCall, method: Callable[..., Any], ports: Ports[Any], *, maybe_none: bool) -> None:
        """`maybe_none`: the call may yield nothing."""
        self.op, self.constants, self.method, self.maybe_none = op, op.constants, method, maybe_none
        self.id, self.streaming, self.always = op.id, op.streaming, ports.job.activity.always(op.id)
        self.connect(ports)

    def connect(self, ports: Ports[Any]) -> None:
        """Use the ports that the rank has for this call now."""
        self.inputs = ports.inputs.get(self.id, [])
        self.out = ports.outputs.get(self.id)


class Position(Protocol):
    """The step at which the workload is."""

    step: int


@dataclass(frozen=True, slots=True)
class Driver:
    """The effects of the steps. Each function that calls the workload raises what the workload raises."""

    operator: Callable[[OpCall], Callable[..., Any]]
    """Returns the workload's function for a call. It takes the call's arguments by name."""
    origin: Callable[[str], OriginValues]
    """``origin(folder)`` returns the persisted snapshot in `folder`, as this rank sees it."""
    repeating: Callable[[], AbstractContextManager[None]]
    """Calls are repeated within it: what their operators report counts already."""
    began: Callable[[], None]
    """An operator begins: shows that on the page."""
    ended: Callable[[Call, bool], int]
    """``ended(call, repeated)``: the operator has ended, and its chunks are sent. Returns the time in ns."""
    look: Callable[[int], int]
    """``look(now)`` handles the messages that have come, and returns `now`. Raises `Stopping`."""
    done: Callable[[int, int], None]
    """``done(step, now)``: all calls of `step` are over, so its line of metrics is complete."""
    close: Callable[[int], None]
    """``close(step)``: the rank runs nothing after `step`, so it sends all lines of metrics."""
    cut: Callable[[Watermarks], None]
    """Takes from watermarks which lines of metrics end where, and which are written."""
    say_again: Callable[[], None]
    """Sends another incarnation of the agent all lines of metrics that may be lost."""
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
        effects: Effects[Any],
        driver: Driver,
        control: Control,
        hooks: RankHooks,
        *,
        ports: Ports[Any],
        position: Position,
        taker: SnapshotTaker | None = None,
    ) -> None:
        """`position.step` is the step that runs. `taker` takes snapshots between two steps."""
        self._ports, self._position, self._driver, self._taker = ports, position, driver, taker
        self._status, self._page = effects.page, effects.page.fields
        self._waits, self._mail, self._now = effects.waits, effects.mail, effects.now
        self._control, self._hooks, self._before_call = control, hooks, hooks.before_call
        self._changes: LayoutChanges
        self._finish: RankFinish | None = None
        self._heard: Watermarks | None = None
        self._committed = self._persisted = -1
        self._in_group = False
        self.calls = [
            Call(op, hooks.wrapped(op, driver.operator(op)), ports, maybe_none=hooks.may_yield_nothing(op))
            for op in ports.job.graph.of_role(effects.mail.site.role)
        ]
        control.end_at(ports.job.steps - 1)
        control.on_adopted.append(self._report_finish)

    def begin(self, launch: RankLaunch, master: MasterMail) -> None:
        """Open the edges of a rank whose state is restored, hear the agent, and repeat what else restores the rank.

        Then the rank is ready for its first step. Raise what the effects raise.
        """
        control, ports, hooks = self._control, self._ports, self._hooks
        self._in_group = launch.collective
        self._changes = LayoutChanges(
            launch.layout, ports, self._status, control,
            end=self._hold, resized=self._resized, origin=self._driver.origin,
        )  # fmt: skip
        ports.open(tuple(control.peers.values()))
        for opened in hooks.opened:
            opened(launch.resume)
        control.attend(self._wired, self._advanced)
        master.attend(hooks.hear)
        control.on_adopted.append(self._driver.say_again)
        self._repeat(launch.resume)

    def replace(self, method: Callable[..., Any]) -> None:
        """Run `method` instead of each operator from now on."""
        for call in self.calls:
            call.method = method

    def enter(self, step: int) -> None:
        """Set the step that the workload sees."""
        self._position.step = step

    def run(self, start: int = 0) -> int:
        """Run from step `start` to the last, as grants come. Return the last finished step.

        Return early when the agent asks the rank to stop (`Control.stopping`). Raise what the effects raise.
        """
        fields, control, position, taker = self._page, self._control, self._position, self._taker
        run, look, done = self.call, self._driver.look, self._driver.done
        calls, hooks, active = self.calls, self._hooks, self._ports.job.activity.active
        finished, looked = start - 1, self._now()
        fields[FINISHED] = finished
        try:
            while finished < control.last:
                step = finished + 1
                for hook in hooks.before_step:
                    hook(step)
                if step > control.granted and not self._await_grant(finished):
                    break
                position.step = fields[STEP] = step
                now = looked
                for call in calls:
                    if call.always or active(call.id, step):
                        for hook in hooks.before_inputs:
                            hook(call.op, step)
                        now = run(call, step)
                        if now - looked > LOOK_NS:
                            looked = look(now)
                for hook in hooks.step_done:
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

    def call(self, call: Call, step: int, *, repeated: bool = False) -> int:
        """Run a call; return the time in ns at which its operator ended. Raise its errors as `OperatorFailed`."""
        fields, driver, taker, out = self._page, self._driver, self._taker, call.out
        fields[OP] = call.id
        try:
            arguments = dict(call.constants)
            for param, port in call.inputs:
                arguments[param] = port.stream(step, call.streaming) if call.streaming else port.take(step)
            for hook in self._before_call:
                hook(call.op, step)
            if taker is not None:
                if taker.told:
                    self.settle()
                taker.calls()
            if self._in_group:
                # Ranks of a group wait for each other inside a call and send no acknowledgement there. So send those
                # that were put off: a producer may need them to unblock another rank of the group.
                self._mail.flush()
            driver.began()
            result = call.method(**arguments)
            chunked = type(result) is GeneratorType
            if chunked and out is not None:
                out.put_chunks(step, result, maybe_none=call.maybe_none)
            elif chunked:
                for _ in result:
                    pass
            ended = driver.ended(call, repeated)
            if out is not None and not chunked:
                out.put(step, result)
            for _, port in call.inputs:
                if call.streaming:
                    port.release_stream(step)
                else:
                    port.release(step)
        except (Stopping, OperatorFailed):
            raise
        except BaseException as error:
            raise OperatorFailed(call.op.label, step, error) from error
        return ended

    def settle(self) -> bool:
        """While the rank waits, take the snapshot that it owes if it is time. Return True if it still owes one."""
        taker, now = self._taker, self._position.step
        if taker is None or taker.owed < 0:
            return False
        step = taker.owed
        self.enter(step)
        try:
            return taker.settle()
        except Stopping:
            raise
        except BaseException as error:
            raise OperatorFailed("snapshot", step, error) from error
        finally:
            self.enter(now)

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

    def _repeat(self, resume: int) -> None:
        """Repeat the last call up to step `resume` of each operator that returns nothing, in the order of the steps.

        This restores a stateless rank to what it was after that step.
        """
        job = self._ports.job
        if resume < 0 or self._mail.site.role in job.unrepeated:
            return
        sinks = [(last_call(job.activity, call.id, resume), call) for call in self.calls if call.op.returns is None]
        with self._driver.repeating():
            for step, call in sorted(((at, call) for at, call in sinks if at is not None), key=lambda pair: pair[0]):
                self.enter(step)
                for hook in self._hooks.before_repeat:
                    hook(call.op, resume)
                self.call(call, step, repeated=True)

    def _wired(self, wire: Connect) -> None:
        self._ports.rewire(wire.peers)
        for rewired in self._hooks.rewired:
            rewired()

    def _advanced(self, advance: Watermarks) -> None:
        self._driver.cut(advance)
        for told in self._hooks.advanced:
            told(advance)
        if self._taker is not None:
            self._taker.advanced(advance)
        else:
            self._ports.commit(advance.committed)

    def _hold(self, step: int) -> None:
        """Send all lines and have the snapshot persisted, because the rank runs no step after `step` for a while."""
        self._driver.close(step)
        if self._taker is not None:
            self._taker.end(step)

    def _resized(self, sizes: Mapping[str, int]) -> None:
        for relaid in self._hooks.relaid:
            relaid(dict(sizes))

    def _await_grant(self, finished: int) -> bool:
        """Wait until the rank may run the step after `finished`; return False if there is none."""
        control, changes, step = self._control, self._changes, finished + 1
        self._waits.at(IDLE)

        def may_run() -> bool:
            return step > control.last or (control.granted >= step and changes.may_go_on)

        def is_news() -> bool:
            if may_run() or changes.is_due(finished):
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
        if self._changes.follow(finished):
            for call in self.calls:
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
        self._driver.close(finished)
        self._page[OP] = -1
        self._waits.at(IDLE)
        for hook in self._hooks.steps_end:
            hook(finished)
        self._ports.end(finished)
        self._ports.drain(finished)

    def _report_finish(self) -> None:
        if self._finish is not None:
            self._driver.report(self._finish)
