"""The roles that may leave out snapshots because their steps are short, and the choice of those snapshots. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.schedule import Activity
from rolemesh_checkpoint.pace import apart_s, until_shared
from rolemesh_checkpoint.persisting import outlasting
from rolemesh_durable.protocol.delivery import delivery_of
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan

__all__ = ["Appointments", "SnapshotPace", "by_appointment", "may_owe"]

WARM: Final = 2
"""Number of first snapshots that write to memory never used before, and so take longer."""
COLD: Final = 10
"""The first snapshots take about this many times longer; `SnapshotPace` divides by it."""
LAST: Final = 4
"""Number of latest snapshots of which the shortest counts: the others had to share the processor."""
SHORT_S: Final = 0.5
"""Seconds. If snapshots are closer than this, they cost so little that none that goes to disk is left out."""
LONG_S: Final = 5.0
"""Seconds. If a step takes as long, snapshots between those of every `persist_every` steps go to disk, too."""
NOTED: Final = 1_000_000
"""A wait shorter than this, in ns, does not count."""
LATE: Final = 5_000_000_000
"""Maximum delay, in ns, of the news about the snapshots of other ranks. A longer one has another cause."""
FORGOTTEN: Final = 0.99
"""The factor by which the remembered wait shrinks with each snapshot, because a shorter one may do by now."""
AHEAD: Final = 128
"""Maximum number of steps to the next appointed snapshot, in case that steps take longer than before."""
WAITED_S: Final = 0.1
"""A rank that waits takes the snapshot that it owes after this many seconds, or after a snapshot's duration."""


def may_owe(graph: LogicalGraph, activity: Activity, role: str, *, together: bool = False) -> bool:
    """Return True if ranks of `role` block only before their first operator, on inputs or credits, and serve no calls.

    Such a rank still holds the previous step's state when it blocks, so it can take a skipped snapshot then. Ranks of a
    group (`together`) wait for credits before that, and agree at the barrier, so they must meet in each step.
    """
    ops = graph.of_role(role)
    if not ops or (together and not any(activity.always(op.id) for op in ops)):
        return False
    if any(op.streaming for op in ops) or any(role in pair for pair in graph.callers):
        return False
    edges = [edge for edge in graph.edges if edge.dst in {op.id for op in ops}]
    return all(edge.dst == ops[0].id and delivery_of(edge).may_owe for edge in edges)


def by_appointment(graph: LogicalGraph, role: str) -> bool:
    """Return True if a group of `role` whose ranks meet in no step may leave snapshots out.

    No rank waits for the commit of its finished steps, because the role has no edges and no calls.
    """
    ends = {op.id for op in graph.of_role(role)}
    touched = any(edge.src in ends or edge.dst in ends for edge in graph.edges)
    return bool(ends) and not touched and not any(role in pair for pair in graph.callers)


class SnapshotPace:
    """The distance between a rank's snapshots, from their durations and the plan. All times are in ns."""

    def __init__(self, plan: SnapshotPlan) -> None:
        self._plan, self._unit = plan, plan.persist_every
        self._count, self._step, self._at, self._each = 0, -1, 0, 0
        self._pauses: deque[int] = deque(maxlen=LAST)
        self._apart = self._known = 0

    def taken(self, step: int, began: int, ended: int, failures_s: float, waited: int = 0) -> None:
        """Note a snapshot of `step`. The job fails every `failures_s` seconds; 0 if it has not failed yet.

        The rank waited for `waited` of that time until it knew that its group has the previous snapshot. With that much
        more distance, it would not have waited.
        """
        known = began - self._at + waited
        news = self._count > 0 and waited >= NOTED and known <= LATE  # otherwise another rank is late, not the news
        self._known = max(int(self._known * FORGOTTEN), known if news else 0)
        self._each = (began - self._at) // max(1, step - self._step)
        self._step, self._at, self._count = step, ended, self._count + 1
        self._unit = 1 if self._plan.paced and self._each >= LONG_S * 1e9 else self._plan.persist_every
        self._pauses.append((ended - began - waited) // (COLD if self._count <= WARM else 1))
        self._apart = max(self._known, int(apart_s(min(self._pauses) * 1e-9, self._plan.every_s, failures_s) * 1e9))
        if self._plan.every_s is not None:
            self._apart = min(self._apart, int(self._plan.every_s * 1e9))

    def persists(self, step: int) -> bool:
        """Return True if the snapshot of `step` goes to disk, if the rank takes it."""
        done, most = step + 1, self._plan.persist_every
        between = self._unit < most and until_shared(step, self._unit, self._apart / self._each) == 0
        return done % self._plan.every == 0 and (between or done % most == 0)

    def is_time(self, step: int, now: int, persist: bool, pins: Sequence[int]) -> bool:
        """Return True if the snapshot of `step` must not be left out, because of the time or of the disk.

        With `persist` it goes to disk, unless one of `pins`, the steps that wait for the disk already, would outlast
        it.
        """
        passed = now - self._at
        outlasts = persist and outlasting((*pins, step)) == step
        if not self._plan.paced or self._apart <= SHORT_S * 1e9:
            return outlasts or passed >= self._apart
        apart = self._apart * (step - self._step) / max(1, passed)
        shared = until_shared(step, self._unit, apart)
        if outlasts and shared == 0:
            return True
        return passed >= self._apart and not 0 < shared < apart  # if it is close, that one is enough

    def waited(self, now: int, since: int) -> bool:
        """Return True if a rank that has waited since `since` takes the snapshot that it owes."""
        return now - self._at >= self._apart or now - since >= max(min(self._pauses, default=0), int(WAITED_S * 1e9))

    def ahead(self, pins: Sequence[int]) -> int:
        """Return the number of steps until the next snapshot is due, if steps take as long as before the last one."""
        if self._count < WARM:
            return 1
        for count in range(1, AHEAD):
            step = self._step + count
            if self.is_time(step, self._at + count * self._each, self.persists(step), pins):
                return count
        return AHEAD


class Appointments:
    """The steps whose snapshots a group takes, as each of its ranks knows them.

    The group's ranks meet in no step. So rank 0 announces the next snapshot when it has taken the last. All ranks take
    the snapshot of the first step of their life.
    """

    def __init__(self) -> None:
        self._begun = False
        self._next: deque[int] = deque()

    def announced(self, step: int) -> None:
        """Note a step that rank 0 has announced. Announcements come in order."""
        self._next.append(step)

    def is_one(self, step: int) -> bool | None:
        """Return True if the group takes the snapshot of `step`; None if rank 0 has not announced the next one."""
        if not self._begun:
            return True
        return step >= self._next[0] if self._next else None

    def taken(self, step: int) -> bool:
        """Note that this rank has taken the snapshot of `step`. Return True if the next one must be announced.

        `step` may be one that every rank takes without an announcement.
        """
        self._begun = True
        while self._next and self._next[0] <= step:
            self._next.popleft()
        return not self._next
