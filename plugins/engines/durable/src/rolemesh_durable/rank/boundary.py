"""Between two steps: the rank's snapshot, and what its agent's control messages let it forget."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from time import monotonic_ns
from typing import Any

from rolemesh.api.workload import State, Workload
from rolemesh_durable.checkpoint.memory import MemorySnapshots, NoRoom
from rolemesh_durable.dataplane.shm import NoSharedMemory, is_full
from rolemesh_durable.protocol.master_config import SnapshotPlan
from rolemesh_durable.protocol.messages import Watermarks
from rolemesh_durable.protocol.owing import Appointments, Pace
from rolemesh_durable.protocol.rank.group_barrier import GroupBarrier
from rolemesh_durable.protocol.rank.page import BLOCKED, EDGE, IDLE, OP, PHASE, SINCE_NS, SNAPSHOT
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.rank.control import Control
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.sent_log import SentLog
from rolemesh_durable.rank.shortage import Shortage
from rolemesh_durable.rank.status_page import StatusPage
from rolemesh_durable.rank.takeover import Inheritance
from rolemesh_durable.rank.waits import ProcessWaits

__all__ = ["SLACK", "Boundary", "Group", "write_snapshot"]

_LOG = logging.getLogger(__name__)
SLACK = 32
"""Between two snapshots, what is kept for consumers grows by at most such a part of what may be kept, and of shared
memory."""
POLL_S = 0.001
"""How often the status pages of the group are looked at while one of its ranks is behind."""


class Group:
    """The collective group of a rank. Restored together, its ranks need a step of which all have the snapshot."""

    def __init__(self, role: str, mates: Collection[str], control: Control) -> None:
        """`mates` are the status pages of the other ranks, of the lives that began with this one's; empty if they are
        not all here: then the agent tells."""
        self._role, self._mates, self._control = role, mates, control

    def has(self, step: int) -> bool:
        """Whether all other ranks have the snapshot of `step` or a later one."""
        if self._mates:
            return all(_snapshot(status_page) >= step for status_page in self._mates)
        advance = self._control.advance
        return advance is not None and advance.groups.get(self._role, -1) >= step


class Boundary:
    """Takes a rank's snapshots, and frees what nobody needs any more."""

    def __init__(
        self,
        plan: SnapshotPlan,
        memory: MemorySnapshots,
        workload: Workload,
        *,
        stateful: bool,
        steps: int,
        control: Control,
        ports: Ports[Any],
        log: SentLog,
        meter: Meter,
        status_page: StatusPage,
        group: Group | None,
        inherited: Inheritance,
        before: Sequence[Callable[[], None]],
        shortage: Shortage,
        slack: int,
        waits: ProcessWaits,
        owes: bool = False,
        barrier: GroupBarrier | None = None,
        apart: GroupBarrier | None = None,
    ) -> None:
        """`stateful`: the workload's state is part of a snapshot. `group` is None for an independent rank. `owes`: a
        snapshot may be left out where steps are short (see `owed`), of a group as it agrees at its `barrier`; or by
        appointment, if its ranks are `apart`."""
        self._plan, self._memory, self._workload, self._stateful = plan, memory, workload, stateful
        self._steps, self._ports, self._log, self._meter, self._status_page = steps, ports, log, meter, status_page
        self._group, self._inherited, self._before = group, inherited, before
        self._shortage, self._control, self._barrier, self._apart = shortage, control, barrier, apart
        self._resent = False
        self._owes, self._pace = owes, Pace(plan)
        self._slack, self._waits = slack, waits
        self._most = -1
        """Who keeps more than this for its consumers owes nothing: a commit is to free it."""
        self._late = False
        """A snapshot was left out: one is due after every step until there is a newer one."""
        self.owed = -1
        """The step whose snapshot was left out, until the next operator begins: it is taken if the rank has to wait
        before that. So whoever waits for the commit of what this rank has finished does so for no longer than one of
        its steps takes."""
        self._persisted = -1
        self._pin()

    def __call__(self, step: int) -> None:
        """All of `step` is done. Raises `Stopping`, `SnapshotError`, and what the workload's ``snapshot`` raises."""
        steps = min(self._steps, self._control.last + 1)
        must = step in (self._control.pause, steps - 1)
        persist = must or self._plan.persisted(step, steps)
        if not (must or self._late or self._plan.due(step, steps)):
            return
        if not must and self._apart is not None and not self._appointed(self._apart.appointments, step):
            return
        if not must and self._may_owe(step, persist):
            self.owed, self._late = step, True
            return
        if not must and (barrier := self._barrier) is not None:
            barrier.want(step)
            self._wait_for(lambda: barrier.taking >= step)
        self._take(step, persist=persist)

    def _appointed(self, told: Appointments, step: int) -> bool:
        self._wait_for(lambda: told.is_one(step) is not None)
        return bool(told.is_one(step))

    def _may_owe(self, step: int, persist: bool) -> bool:
        """The last snapshot was just now, and the next step waits for nobody once its operator has begun.

        One that is to be persisted may be left out if it would give way to one that waits for the disk already. For a
        group its keeper sees to both, and all of it waits for credits before an operator begins.
        """
        if not self._owes:
            return False
        judges = self._barrier is None or self._barrier.keeps
        if judges and self._pace.is_time(step, monotonic_ns(), persist, self._pins):
            return False
        ports = self._ports
        kept = ports.kept_bytes
        if kept > self._most or kept > ports.job.retention_bytes:
            return False
        if self._barrier is not None:
            return True
        for way in ports.ways:
            if not way.state.credit:
                return False
        for out in ports.outputs.values():  # also if a consumer starts again, and asks for more than there are credits
            out.admitted = step + 1
        return True

    def settle(self) -> bool:
        """The rank waits: take the snapshot that it owes, if it is time, if it waits to be granted more steps, or has
        waited for a while: somebody may wait for the commit of what this one has finished.

        Whether it still owes one. In a group it is the keeper that says so to all.
        """
        step, fields, barrier = self.owed, self._status_page.fields, self._barrier
        due = step >= 0 and (fields[PHASE] == IDLE or self._pace.waited(monotonic_ns(), fields[SINCE_NS]))
        if barrier is not None:
            if due and barrier.keeps:
                barrier.want(step)
            due = self.told
        if due:
            before = fields[OP], fields[PHASE], fields[EDGE], fields[SINCE_NS]
            self._take(step, persist=self._plan.persisted(step, self._steps))
            fields[OP], fields[PHASE], fields[EDGE], fields[SINCE_NS] = before
        return self.owed >= 0

    @property
    def told(self) -> bool:
        """Whether the group takes the snapshot that is owed: now, or before the next operator begins."""
        return self._barrier is not None and 0 <= self.owed <= self._barrier.taking

    def end(self, step: int) -> None:
        """`step` was the last one, or that before the layout changes, which may not have been known by then.

        Raises what a call does.
        """
        advance = self._control.advance
        if self.owed == step:
            self._take(step, persist=True)
        if self._plan.persisted(step, self._steps) or self._persisted == step:
            return  # this generation's, or its agent has seen to an earlier one's
        if advance is not None and advance.persisted >= step:
            return
        if step in self._memory.steps():
            self._memory.pin(step)
            self._pin()
        else:
            self._take(step, persist=True)

    def _take(self, step: int, *, persist: bool) -> None:
        began, self.owed, self._late = monotonic_ns(), -1, False
        if self._log.lost:
            _LOG.warning("somebody has emptied shared memory (%s); what is needed of it is made again", self._log.where)
            self._memory.clear()  # they name places in a log that is gone
            self._ports.log_again(self._log)
            self._meter.log_again()
        if step in (self._control.last, self._control.pause):
            self._meter.end(step)
        self._meter.boundary(step)
        fields, waited = self._status_page.fields, 0
        if (group := self._group) is not None and len(self._memory.steps()) > 1:
            newest = fields[SNAPSHOT]
            waits = monotonic_ns()
            self._wait_for(lambda: group.has(newest))  # the older one is overwritten: no mate can need it then
            waited = monotonic_ns() - waits
        state = self._workload.snapshot
        if not self._stateful:
            state = _nothing
        else:
            for hook in self._before:
                hook()
            fields[OP], fields[PHASE], fields[EDGE], fields[SINCE_NS] = -1, IDLE, -1, monotonic_ns()
            if self._before or group is not None:  # its turn, or its mates', may be over after a wait
                state = partial(_same, state())
        # Never left out: producers that keep as much as they may wait for the commit of this step.
        write_snapshot(self._shortage, self._memory, step, state, log=self._log.position, persist=persist)
        fields[SNAPSHOT] = step
        if persist:
            self._persisted = step
            self._pin()
            self._meter.flush()  # its checkpoint is not complete before these lines are written
        advance = self._control.advance
        self._pace.taken(step, began, monotonic_ns(), advance.failures_s if advance is not None else 0.0, waited)
        if self._owes:
            self._most = self._ports.kept_bytes + self._slack
        if self._apart is not None and self._apart.appointments.taken(step) and self._apart.keeps:
            self._apart.appoint(step + self._pace.ahead(self._pins))

    def advanced(self, advance: Watermarks) -> None:
        """The agent has told how far everything is."""
        self._pin()
        self._ports.commit(advance.committed)
        self._inherited.committed(advance.committed)
        self._log.trim(advance.committed, advance.published, self._pins)
        if self._owes:
            self._most = min(self._most, self._ports.kept_bytes + self._slack)
        if not self._resent:
            self._resent = True
            lines = [block for block in self._inherited.lines if block.last > advance.published]
            self._meter.resend(lines)

    def _pin(self) -> None:
        self._pins = self._memory.pinned()
        self._ports.pin(self._pins)

    def _wait_for(self, there: Callable[[], bool]) -> None:
        """Wait for the group."""
        if not there():
            self._status_page.fields[OP] = -1
            self._waits.until(there, BLOCKED, look_s=POLL_S)


def _snapshot(path: str) -> int:
    """The newest of the rank whose status page lies there."""
    try:
        status_page = StatusPage.open(path)
    except FileNotFoundError:
        return -1
    at = status_page.read()
    status_page.close()
    return at.snapshot


def _nothing() -> None:
    return None


def _same(state: State | None) -> State | None:
    return state


def write_snapshot(
    shortage: Shortage,
    memory: MemorySnapshots,
    step: int,
    state: Callable[[], State | None],
    *,
    log: int,
    persist: bool,
) -> None:
    """Take the snapshot of `step`, once there is memory for it. Raises what `state` and `MemorySnapshots.write` do."""

    def write() -> None:
        try:
            memory.write(step, state(), log=log, persist=persist)
        except NoRoom as error:
            if not is_full(error.__cause__):
                raise
            raise NoSharedMemory(error.what, where=error.where, remedy=error.remedy) from error

    shortage(write)
