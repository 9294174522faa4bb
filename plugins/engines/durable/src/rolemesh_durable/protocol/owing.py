"""Which roles may leave out snapshots where their steps are short, and which ones those are. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

from rolemesh.api.partition import Balanced
from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.schedule import Activity
from rolemesh_durable.protocol.calls import ways
from rolemesh_durable.protocol.master_config import SnapshotPlan
from rolemesh_durable.protocol.persisting import outlasting

__all__ = ["Pace", "apart_s", "may_owe", "until_shared"]

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
    if any(op.streaming for op in ops) or any(role in (way.caller, way.callee) for way in ways(graph)):
        return False
    edges = [edge for edge in graph.edges if edge.dst in {op.id for op in ops}]
    partitions = {type(partition) for edge in edges for partition in (edge.src_partition, edge.dst_partition)}
    return Balanced not in partitions and all(edge.dst == ops[0].id and not edge.newest for edge in edges)


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
        self._count, self._step, self._at = 0, -1, 0
        self._pauses: deque[int] = deque(maxlen=LAST)
        self._apart = 0

    def taken(self, step: int, began: int, ended: int, failures_s: float) -> None:
        """The snapshot of `step` has been taken; the job fails every `failures_s` seconds, 0 if it has not yet."""
        self._step, self._at, self._count = step, ended, self._count + 1
        self._pauses.append((ended - began) // (COLD if self._count <= WARM else 1))
        self._apart = int(apart_s(min(self._pauses) * 1e-9, self._plan.every_s, failures_s) * 1e9)

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
