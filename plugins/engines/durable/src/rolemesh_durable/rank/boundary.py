"""Between two steps: the rank's snapshot, and what its agent's word lets it forget."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import monotonic_ns

from rolemesh.api.workload import State, Workload
from rolemesh.runs.meter import Meter
from rolemesh_durable.checkpoint.memory import MemorySnapshots, NoRoom
from rolemesh_durable.checkpoint.send_log import SendLog
from rolemesh_durable.dataplane.shm import NoSharedMemory, is_full
from rolemesh_durable.protocol.master_config import SnapshotPlan
from rolemesh_durable.protocol.messages import Watermarks
from rolemesh_durable.rank.call_start import Admission
from rolemesh_durable.rank.control import Control, Stopping
from rolemesh_durable.rank.edges import Ports
from rolemesh_durable.rank.shortage import Shortage
from rolemesh_durable.rank.status_page import BLOCKED, EDGE, IDLE, OP, PHASE, SINCE_NS, SNAPSHOT, StatusPage
from rolemesh_durable.rank.takeover import Inheritance

__all__ = ["Boundary", "Group", "write_snapshot"]

_LOG = logging.getLogger(__name__)
POLL_S = 0.001
"""How often the status pages of the group are looked at while one of its ranks is behind."""


class Group:
    """The collective group of a rank. Restored together, its ranks need a step of which all have the snapshot."""

    def __init__(self, role: str, mates: Mapping[int, str], ports: Ports, control: Control) -> None:
        """`mates` are the status pages of the other ranks; empty if they are not all here: then the agent tells."""
        self._role, self._mates, self._ports, self._control = role, mates, ports, control

    def has(self, step: int) -> bool:
        """Whether all other ranks have the snapshot of `step` or a later one."""
        if self._mates:
            return all(self._reached(rank, status_page) >= step for rank, status_page in self._mates.items())
        advance = self._control.advance
        return advance is not None and advance.groups.get(self._role, -1) >= step

    def _reached(self, rank: int, path: str) -> int:
        try:
            status_page = StatusPage.open(path)
        except FileNotFoundError:
            return -1
        at = status_page.read()
        status_page.close()
        return at.snapshot if at.generation == self._ports.endpoint.generation(self._role, rank) else -1


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
        ports: Ports,
        log: SendLog,
        meter: Meter,
        status_page: StatusPage,
        group: Group | None,
        inherited: Inheritance,
        admission: Admission | None,
        shortage: Shortage,
    ) -> None:
        """`stateful`: the workload's state is part of a snapshot. `group` is None for an independent rank."""
        self._plan, self._memory, self._workload, self._stateful = plan, memory, workload, stateful
        self._steps, self._ports, self._log, self._meter, self._status_page = steps, ports, log, meter, status_page
        self._group, self._inherited, self._admission = group, inherited, admission
        self._shortage = shortage
        self._resent = False
        self._pin()

    def __call__(self, step: int) -> None:
        """All of `step` is done. Raises `Stopping`, `SnapshotError`, and what the workload's ``snapshot`` raises."""
        if not self._plan.due(step, self._steps):
            return
        if self._log.lost:
            _LOG.warning("somebody has emptied shared memory (%s); what is needed of it is made again", self._log.where)
            self._memory.clear()  # they name places in a log that is gone
            self._ports.log_again(self._log)
            self._meter.log_again()
        if step == self._steps - 1:
            self._meter.end(step)
        self._meter.boundary(step)
        fields = self._status_page.fields
        if self._group is not None and len(self._memory.steps()) > 1:
            self._wait_for(self._group, fields[SNAPSHOT])
        state = None
        if self._stateful:
            if self._admission is not None:
                self._admission.take()
            fields[OP], fields[PHASE], fields[EDGE], fields[SINCE_NS] = -1, IDLE, -1, monotonic_ns()
            state = self._workload.snapshot()
        persist = self._plan.persisted(step, self._steps)
        # Never left out: producers that keep as much as they may wait for the commit of this step.
        write_snapshot(self._shortage, self._memory, step, state, log=self._log.position, persist=persist)
        fields[SNAPSHOT] = step
        if persist:
            self._pin()

    def advanced(self, advance: Watermarks) -> None:
        """The agent has told how far everything is."""
        self._pin()
        self._ports.commit(advance.committed)
        self._inherited.committed(advance.committed)
        self._log.trim(advance.committed, advance.published, self._pins)
        if not self._resent:
            self._resent = True
            lines = [line for line in self._inherited.lines if line.step > advance.published]
            self._meter.resend(lines)

    def _pin(self) -> None:
        self._pins = self._memory.pinned()
        self._ports.pin(self._pins)

    def _wait_for(self, group: Group, step: int) -> None:
        """The older of two snapshots is about to be overwritten: wait until no mate can need it."""
        if group.has(step):
            return
        fields, endpoint = self._status_page.fields, self._ports.endpoint
        began = monotonic_ns()
        fields[OP], fields[PHASE], fields[EDGE], fields[SINCE_NS] = -1, BLOCKED, -1, began
        while not group.has(step):
            endpoint.pump(POLL_S)
            if endpoint.stopping:
                raise Stopping
        self._meter.blocked += monotonic_ns() - began


def write_snapshot(
    shortage: Shortage, memory: MemorySnapshots, step: int, state: State | None, *, log: int, persist: bool
) -> None:
    """Take the snapshot of `step`, once there is memory for it. Raises what `MemorySnapshots.write` raises."""

    def write() -> None:
        try:
            memory.write(step, state, log=log, persist=persist)
        except NoRoom as error:
            if not is_full(error.__cause__):
                raise
            raise NoSharedMemory(error.what, where=error.where, remedy=error.remedy) from error

    shortage(write)
