"""The choice of the steps at which a rank takes its snapshots, and the memory that each commit frees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rolemesh_durable.protocol.messages import Watermarks
from rolemesh_durable.protocol.rank.control import Control
from rolemesh_durable.protocol.rank.effects import Effects
from rolemesh_durable.protocol.rank.group_barrier import GroupBarrier
from rolemesh_durable.protocol.rank.owing import Appointments, by_appointment, may_owe
from rolemesh_durable.protocol.rank.page import BLOCKED, IDLE, OP, PHASE, SINCE_NS, SNAPSHOT
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.protocol.rank.shape import JobShape

__all__ = ["GroupSnapshots", "Omission", "Pace", "SnapshotStore", "SnapshotTaker", "omission_of"]

POLL_S = 0.001
"""Seconds between two looks at the status pages of the group while one of its ranks is behind."""


class SnapshotStore(Protocol):
    """The snapshots of a rank, and all that must be written with them. They outlive the rank's process."""

    def steps(self) -> Sequence[int]:
        """The steps of the complete snapshots."""

    def pinned(self) -> Sequence[int]:
        """The steps of the snapshots that wait for the disk."""

    def pin(self, step: int) -> None:
        """Let the snapshot of `step` wait for the disk."""

    def prepare(self, step: int, last: bool) -> None:
        """A snapshot of `step` follows: write what must lie before it, for example lines of metrics.

        `last`: the rank runs no step for a while, so all lines end here.
        """

    def write(self, step: int, persist: bool) -> None:
        """Take the rank's state and write the snapshot of `step`; if `persist`, it waits for the disk.

        Waits for memory. Raises the workload's errors, and an error if the state cannot be written.
        """

    def publish(self) -> None:
        """The snapshot goes to disk: send the lines of metrics up to it, for which its checkpoint waits."""

    def forget(self, committed: int, published: int, pins: Sequence[int]) -> None:
        """Free what no rank needs after these steps; the snapshots of the steps in `pins` wait for the disk."""

    def resend(self, published: int) -> None:
        """Send the lines of former generations after step `published` again."""


class Pace(Protocol):
    """How far apart snapshots are. All times are in ns (`rolemesh_durable.protocol.rank.owing.SnapshotPace`)."""

    def taken(self, step: int, began: int, ended: int, failures_s: float, waited: int = 0) -> None:
        """The rank took the snapshot of `step` in this time, and waited for its group for `waited` ns of it."""

    def persists(self, step: int) -> bool:
        """Return True if the snapshot of `step` goes to disk, if the rank takes it."""

    def is_time(self, step: int, now: int, persist: bool, pins: Sequence[int]) -> bool:
        """Return True if the rank takes the snapshot of `step` in any case."""

    def waited(self, now: int, since: int) -> bool:
        """Return True if a rank that has waited since `since` takes the snapshot that it owes."""

    def ahead(self, pins: Sequence[int]) -> int:
        """The number of steps until the next snapshot is due."""


@dataclass(frozen=True, slots=True)
class Omission:
    """How a rank may leave out snapshots where its steps are short (`rolemesh_durable.protocol.rank.owing`)."""

    alone: bool = False
    """The rank decides by itself."""
    barrier: GroupBarrier | None = None
    """The ranks of the group agree at this barrier, at which they meet in each step."""
    appointed: GroupBarrier | None = None
    """The ranks of the group meet in no step: rank 0 appoints the next snapshot through this barrier."""

    @property
    def owes(self) -> bool:
        """True if the rank takes a snapshot later that it has left out."""
        return self.alone or self.barrier is not None


def omission_of(
    job: JobShape, role: str, group: GroupBarrier | None, *, lockstep: bool, may_postpone: bool
) -> Omission:
    """Return how a rank of `role` may leave out snapshots.

    `group` is the barrier of its group, None for a rank without mates. `lockstep`: the ranks of a group meet before
    each call. `may_postpone`: neither the workload nor an extension needs each snapshot at once.
    """
    if not may_postpone:
        return Omission()
    may = may_owe(job.graph, job.activity, role, together=group is not None)
    if group is None:
        return Omission(alone=may)
    if lockstep:
        return Omission(barrier=group if may else None)
    return Omission(appointed=group if by_appointment(job.graph, role) else None)


class GroupSnapshots:
    """One rank's knowledge of its group's snapshots. A group is restored to a step of which all ranks have one."""

    def __init__(self, role: str, control: Control, mates: Sequence[Callable[[], int]]) -> None:
        """Each of `mates` returns the newest snapshot of another rank of the group, if all live on this node.

        Otherwise `mates` is empty, and the agent sends the group's newest common step.
        """
        self._role, self._control, self._mates = role, control, mates

    def has(self, step: int) -> bool:
        """Return True if all other ranks have the snapshot of `step` or a later one."""
        if self._mates:
            return all(newest() >= step for newest in self._mates)
        advance = self._control.advance
        return advance is not None and advance.groups.get(self._role, -1) >= step


class SnapshotTaker:
    """Takes a rank's snapshots between two steps, and frees what no rank needs any more."""

    def __init__(
        self,
        ports: Ports[Any],
        effects: Effects[Any],
        store: SnapshotStore,
        control: Control,
        *,
        pace: Pace,
        omission: Omission,
        group: GroupSnapshots | None,
        slack: int,
    ) -> None:
        """`group` is None for a rank without mates.

        Between two snapshots, the bytes that the rank keeps for consumers grow by at most `slack` before it takes one
        in any case.
        """
        self._ports, self._store, self._control, self._group = ports, store, control, group
        self._page, self._waits, self._now = effects.page.fields, effects.waits, effects.now
        self._plan, self._steps = ports.job.snapshots, ports.job.steps
        self._pace, self._omission, self._barrier = pace, omission, omission.barrier
        self._slack = slack
        self._resent = False
        self._most = -1
        """A rank that keeps more bytes than this takes its snapshot, so that a commit can free them."""
        self._late = False
        """True if the rank has left out a snapshot. Then it considers one after each step until it takes one."""
        self.owed = -1
        """The step whose snapshot the rank has left out; -1 for none.

        The rank takes it if it has to wait before its next operator begins. So a rank that waits for the commit of what
        this rank has finished waits for at most one step.
        """
        self._persisted = -1
        self._pin()

    def after(self, step: int) -> None:
        """Take the snapshot of the finished `step` if one is due.

        Raises `Stopping`, and the errors of `SnapshotStore.write`.
        """
        steps = min(self._steps, self._control.last + 1)
        must = step in (self._control.pause, steps - 1)
        persist = must or self._pace.persists(step)
        if not (must or self._late or self._plan.due(step, steps)):
            return
        if not must and self._omission.appointed is not None:
            if not self._is_appointed(self._omission.appointed.appointments, step):
                return
        elif not must and self._may_owe(step, persist):
            self.owed, self._late = step, True
            return
        if not must and (barrier := self._barrier) is not None:
            barrier.want(step)
            self._wait_for(lambda: barrier.taking >= step)
        self._take(step, persist=persist)

    def _is_appointed(self, known: Appointments, step: int) -> bool:
        self._wait_for(lambda: known.is_one(step) is not None)
        return bool(known.is_one(step))

    def _may_owe(self, step: int, persist: bool) -> bool:
        """Return True if the last snapshot is recent, and the next step waits for nothing once its operator has begun.

        A rank may leave out a snapshot for the disk if another one that waits for the disk would outlast it. In a group
        rank 0 decides both for all, and all ranks wait for credits before an operator begins.
        """
        if not self._omission.owes:
            return False
        judges = self._barrier is None or self._barrier.keeps
        if judges and self._pace.is_time(step, self._now(), persist, self._pins):
            return False
        ports = self._ports
        kept = ports.kept_bytes
        if kept > self._most or kept > ports.job.retention_bytes:
            return False
        if self._barrier is not None:
            return True
        for out_edge in ports.out_edges:
            if not out_edge.state.credit:
                return False
        for out in ports.outputs.values():  # also if a consumer starts again, and asks for more than there are credits
            out.admitted = step + 1
        return True

    def settle(self) -> bool:
        """While the rank waits: take the snapshot that it owes, if it is time. Return True if it still owes one.

        It is time if the rank waits for a grant, or has waited for a while: another rank may wait for the commit of
        this rank's finished steps. In a group rank 0 decides for all.
        """
        step, fields, barrier = self.owed, self._page, self._barrier
        due = step >= 0 and (fields[PHASE] == IDLE or self._pace.waited(self._now(), fields[SINCE_NS]))
        if barrier is not None:
            if due and barrier.keeps:
                barrier.want(step)
            due = self.told
        if due:
            op = fields[OP]
            self._take(step, persist=self._pace.persists(step))
            fields[OP] = op
        return self.owed >= 0

    def calls(self) -> None:
        """An operator begins. The rank owes no snapshot any more: after this one it waits for nobody in this step."""
        self.owed = -1

    @property
    def told(self) -> bool:
        """True if the group takes the snapshot that this rank owes: now, or before the next operator begins."""
        return self._barrier is not None and 0 <= self.owed <= self._barrier.taking

    def end(self, step: int) -> None:
        """No step follows `step`, or the layout changes after it: have its snapshot persisted.

        The rank may not have known that when it finished the step. Raises what `after` raises.
        """
        advance = self._control.advance
        if self.owed == step:
            self._take(step, persist=True)
        if self._plan.persisted(step, self._steps) or self._persisted == step:
            return  # this generation has written it, or the agent has persisted that of an earlier one
        if advance is not None and advance.persisted >= step:
            return
        if step in self._store.steps():
            self._store.pin(step)
            self._pin()
        else:
            self._take(step, persist=True)

    def _take(self, step: int, *, persist: bool) -> None:
        began, self.owed, self._late = self._now(), -1, False
        self._store.prepare(step, step in (self._control.last, self._control.pause))
        waited = self._await_group()
        # The rank takes it even if memory is short: producers that keep as much as they may wait for its commit.
        self._store.write(step, persist)
        self._page[SNAPSHOT] = step
        if persist:
            self._persisted = step
            self._pin()
            self._store.publish()
        advance = self._control.advance
        self._pace.taken(step, began, self._now(), advance.failures_s if advance is not None else 0.0, waited)
        if self._omission.owes:
            self._most = self._ports.kept_bytes + self._slack
        if (group := self._omission.appointed) is not None and group.appointments.taken(step) and group.keeps:
            group.appoint(step + self._pace.ahead(self._pins))

    def _await_group(self) -> int:
        """Wait until no mate can need the older snapshot, which the next one overwrites. Return the ns of that."""
        if (group := self._group) is None or len(self._store.steps()) < 2:
            return 0
        newest, began = self._page[SNAPSHOT], self._now()
        self._wait_for(lambda: group.has(newest))
        return self._now() - began

    def advanced(self, advance: Watermarks) -> None:
        """The agent has sent watermarks: free what no rank needs after them."""
        self._pin()
        self._ports.commit(advance.committed)
        self._store.forget(advance.committed, advance.published, self._pins)
        if self._omission.owes:
            self._most = min(self._most, self._ports.kept_bytes + self._slack)
        if not self._resent:
            self._resent = True
            self._store.resend(advance.published)

    def _pin(self) -> None:
        self._pins = self._store.pinned()
        self._ports.pin(self._pins)

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        """Wait for the group."""
        if not ready():
            self._page[OP] = -1
            self._waits.until(ready, BLOCKED, look_s=POLL_S)
