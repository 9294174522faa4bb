"""The snapshots of a rank's process, in shared memory, with its send log and its lines of metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rolemesh.api.workload import State, Workload
from rolemesh_checkpoint.memory import MemorySnapshots, NoRoom
from rolemesh_dataplane.shm import NoSharedMemory, is_full
from rolemesh_durable.protocol.rank.page import COMPUTING, IDLE, OP, SAVING
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.rank.former_memory import Inherited
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.sent_log import SentLog
from rolemesh_durable.rank.shortage import Shortage
from rolemesh_durable.rank.status_page import StatusPage

__all__ = ["ProcessSnapshotStore", "StateSource", "newest_snapshot", "write_snapshot"]

_LOG = logging.getLogger(__name__)


class StateSource:
    """Gives the state of a stateful workload for a snapshot."""

    def __init__(self, workload: Workload, before: Sequence[Callable[[], None]], *, early: bool) -> None:
        """The source calls the hooks `before` first: they wait for the rank's turn, for example.

        `early`: take the state before the wait for memory. Meanwhile the turn of the rank or of its mates may end.
        """
        self._workload, self._before, self._early = workload, before, early

    def __call__(self) -> Callable[[], State | None]:
        """Return a function that returns the state. Raises the workload's errors, and `Stopping`."""
        for hook in self._before:
            hook()
        return partial(lambda state: state, self._workload.snapshot()) if self._early else self._workload.snapshot


class ProcessSnapshotStore:
    """`rolemesh_durable.protocol.rank.snapshots.Store` of a process."""

    def __init__(
        self,
        memory: MemorySnapshots,
        log: SentLog,
        meter: Meter,
        ports: Ports[Any],
        shortage: Shortage,
        inherited: Inherited,
        state: StateSource | None,
    ) -> None:
        """`state` is None for a stateless workload."""
        self._memory, self._log, self._meter, self._ports = memory, log, meter, ports
        self._shortage, self._inherited, self._state = shortage, inherited, state
        self.steps, self.pinned, self.pin, self.publish = memory.steps, memory.pinned, memory.pin, meter.flush

    def prepare(self, step: int, last: bool) -> None:
        """Write the lines of metrics up to `step` to the log. If the log is lost, write the needed records again."""
        if self._log.lost:
            _LOG.warning("the files of the send log in %s were removed; writing what is needed again", self._log.where)
            self._memory.clear()  # the snapshots refer to positions in the lost log
            self._ports.log_again(self._log)
            self._meter.log_again()
        if last:
            self._meter.end(step)
        self._meter.log_lines(step)

    def write(self, step: int, persist: bool) -> None:
        """Take the state and write the snapshot. Raises the errors of `write_snapshot`."""
        meter, self._ports.fields[OP] = self._meter, -1
        with self._ports.waits.during(SAVING) as (*_, at, _):
            around = meter.within(at if at[0] != COMPUTING else (IDLE, -1, 0))  # an operator has ended before
            state = self._state() if self._state is not None else lambda: None
            write_snapshot(self._shortage, self._memory, step, state, log=self._log.position, persist=persist)
            meter.within(around)

    def forget(self, committed: int, published: int, pins: Sequence[int]) -> None:
        """Remove slots of orphans, and segments of the log."""
        self._inherited.committed(committed)
        self._log.trim(committed, published, pins)

    def resend(self, published: int) -> None:
        """Send the lines of former generations after step `published` again."""
        self._meter.resend([line for line in self._inherited.lines if line.step > published])


def newest_snapshot(path: str) -> int:
    """Return the newest snapshot of the rank whose status page is at `path`; -1 if there is no page."""
    try:
        status_page = StatusPage.open(path)
    except FileNotFoundError:
        return -1
    at = status_page.read()
    status_page.close()
    return at.snapshot


def write_snapshot(
    shortage: Shortage,
    memory: MemorySnapshots,
    step: int,
    state: Callable[[], State | None],
    *,
    log: int,
    persist: bool,
) -> None:
    """Write the snapshot of `step` once there is memory for it. Raises the errors of `state` and of the write."""

    def write() -> None:
        try:
            memory.write(step, state(), log=log, persist=persist)
        except NoRoom as error:
            if not is_full(error.__cause__):
                raise
            raise NoSharedMemory(error.what, where=error.where, remedy=error.remedy) from error

    shortage(write)
