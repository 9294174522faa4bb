"""Which roles may leave out snapshots where their steps are short, and which ones those are. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.schedule import Activity
from rolemesh_durable.protocol.delivery import delivery_of
from rolemesh_durable.protocol.master_config import SnapshotPlan
from rolemesh_durable.protocol.persisting import outlasting

__all__ = ["Appointments", "Pace", "apart_s", "by_appointment", "may_owe", "until_shared"]

PAUSES: Final = 100
"""So many times what a snapshot takes passes between two of them: they take a hundredth of the time."""
FAILURES_S: Final = 86_400.0
"""A job that has not failed yet is taken for one that does so once a day."""
WARM: Final = 2
"""The first snapshots write to memory that was never used, and say little of what later ones take:"""
COLD: Final = 10
"""so much longer, about."""
LAST: Final = 4
"""Of so many the shortest counts: the others had to share the processor."""
SHORT_S: Final = 0.5
"""Snapshots that are closer than this cost so little that none is left out that goes to disk."""
NOTED: Final = 1_000_000
"""A wait that is shorter, in ns, is none."""
LATE: Final = 5_000_000_000
"""What mates have is known after so many ns at most."""
FORGOTTEN: Final = 0.99
"""How fast waits are forgotten, from one snapshot to the next: perhaps a shorter time would do by now."""
AHEAD: Final = 128
"""A snapshot is appointed so many steps ahead at most, in case that they take longer than those before."""
WAITED_S: Final = 0.1
"""A rank that waits takes what it owes after as long, or after as long as that takes."""


def may_owe(graph: LogicalGraph, activity: Activity, role: str, *, together: bool = False) -> bool:
    """Whether a rank of `role` waits in no step but for its inputs, before its first operator begins, and for credits;
    and is asked nothing meanwhile. Then the state after a step is there until nothing keeps the rank from finishing the
    next one. Ranks of a group (`together`), which wait for credits before, agree at the barrier, so meet in each step.
    """
    ops = graph.of_role(role)
    if not ops or (together and not any(activity.always(op.id) for op in ops)):
        return False
    if any(op.streaming for op in ops) or any(role in pair for pair in graph.callers):
        return False
    edges = [edge for edge in graph.edges if edge.dst in {op.id for op in ops}]
    return all(edge.dst == ops[0].id and delivery_of(edge).may_owe for edge in edges)


def by_appointment(graph: LogicalGraph, role: str) -> bool:
    """Whether a group of `role` whose ranks meet in no step may leave snapshots out: nobody waits for the commit of
    what it has finished, since it takes and gives nothing."""
    ends = {op.id for op in graph.of_role(role)}
    touched = any(edge.src in ends or edge.dst in ends for edge in graph.edges)
    return bool(ends) and not touched and not any(role in pair for pair in graph.callers)


def apart_s(pause_s: float, most_s: float | None, failures_s: float = 0.0) -> float:
    """The seconds between two snapshots that take `pause_s` each: a hundred times that, or `most_s`.

    If that is None, less where failures come often: with `failures_s` between them (0: none has come yet) what
    snapshots and failures cost together is least at sqrt(2 * pause * failures). (Young 1974, "A first order
    approximation to the optimum checkpoint interval".)
    """
    if most_s is None:
        most_s = math.sqrt(2 * pause_s * (failures_s or FAILURES_S))
    return min(PAUSES * pause_s, most_s)


def until_shared(step: int, persist_every: int, apart: float) -> int:
    """After how many steps comes the next whose snapshot goes to disk even if the last was just now, of a rank whose
    snapshots are `apart` steps apart; 0 if `step` is one. A checkpoint needs one step from all ranks: each takes those
    of every 2, 4, 8 … times `persist_every` steps, as many as it can, so they have in common what the one with the
    fewest takes (see `protocol.persisting`)."""
    unit = persist_every
    while unit < apart:
        unit *= 2
    return -(step + 1) % unit


class Pace:
    """How far apart a rank's snapshots are: from what they have taken, and the plan. All times are in ns."""

    def __init__(self, plan: SnapshotPlan) -> None:
        self._plan = plan
        self._count, self._step, self._at, self._each = 0, -1, 0, 0
        self._pauses: deque[int] = deque(maxlen=LAST)
        self._apart = self._known = 0

    def taken(self, step: int, began: int, ended: int, failures_s: float, waited: int = 0) -> None:
        """The snapshot of `step` has been taken; the job fails every `failures_s` seconds, 0 if it has not yet.

        For `waited` of the time the rank has waited until it knew that its mates have the one before: had they been so
        much further apart, it would not have had to.
        """
        known = began - self._at + waited
        news = self._count > 0 and waited >= NOTED and known <= LATE  # else it is a mate that is late, not the news
        self._known = max(int(self._known * FORGOTTEN), known if news else 0)
        self._each = (began - self._at) // max(1, step - self._step)
        self._step, self._at, self._count = step, ended, self._count + 1
        self._pauses.append((ended - began - waited) // (COLD if self._count <= WARM else 1))
        self._apart = max(self._known, int(apart_s(min(self._pauses) * 1e-9, self._plan.every_s, failures_s) * 1e9))
        if self._plan.every_s is not None:
            self._apart = min(self._apart, int(self._plan.every_s * 1e9))

    def is_time(self, step: int, now: int, persist: bool, pins: Sequence[int]) -> bool:
        """Whether the snapshot of `step` is not to be left out: for the time that has passed, or as one of those that
        go to disk (`persist`), unless it would give way there to one of `pins`, the steps that wait for it already."""
        passed = now - self._at
        outlasts = persist and outlasting((*pins, step)) == step
        if not self._plan.paced or self._apart <= SHORT_S * 1e9:
            return outlasts or passed >= self._apart
        apart = self._apart * (step - self._step) / max(1, passed)
        shared = until_shared(step, self._plan.persist_every, apart)
        if outlasts and shared == 0:
            return True
        return passed >= self._apart and not 0 < shared < apart  # if it is close, that one is enough

    def waited(self, now: int, since: int) -> bool:
        """Whether a rank that has waited since then takes what it owes."""
        return now - self._at >= self._apart or now - since >= max(min(self._pauses, default=0), int(WAITED_S * 1e9))

    def ahead(self, pins: Sequence[int]) -> int:
        """After how many steps the next one is due, if they take as long as those before the last one."""
        if self._count < WARM:
            return 1
        for count in range(1, AHEAD):
            step, persist = self._step + count, (self._step + count + 1) % self._plan.persist_every == 0
            if self.is_time(step, self._at + count * self._each, persist, pins):
                return count
        return AHEAD


class Appointments:
    """The steps of whose snapshots a group takes, as each of its ranks knows them: its ranks meet in no step, so rank 0
    says the next one when it has taken the last. All take that of the first step of their life."""

    def __init__(self) -> None:
        self._begun = False
        self._next: deque[int] = deque()

    def announced(self, step: int) -> None:
        """Rank 0 says so, in order."""
        self._next.append(step)

    def is_one(self, step: int) -> bool | None:
        """Whether the group takes the snapshot of `step`; None if rank 0 is behind, and has not said it."""
        if not self._begun:
            return True
        return step >= self._next[0] if self._next else None

    def taken(self, step: int) -> bool:
        """This rank has taken that of `step`, which may be one that everybody takes unasked. Whether the next one is
        still to be announced."""
        self._begun = True
        while self._next and self._next[0] <= step:
            self._next.popleft()
        return not self._next
