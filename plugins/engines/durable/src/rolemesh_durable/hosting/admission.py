"""Admission of a job to nodes that others use, too: plan with free resources, and wait for those that others hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rolemesh.api.cluster import ClusterView
from rolemesh.errors import PlacementError
from rolemesh.placement import PlacementPlan
from rolemesh_durable.backends import Ahead, Shared

__all__ = ["find_room"]

LOOK_S = 0.5


def find_room(
    backend: Shared,
    job: str,
    priority: int,
    plan: Callable[[ClusterView], PlacementPlan],
    wait_s: float,
    where: str,
    say: Callable[[str], None],
) -> tuple[PlacementPlan, ClusterView]:
    """Return a plan on free resources when it is this job's turn, and the nodes that it was made for.

    The caller has checked that the job fits on these nodes if nobody else uses them. A change of the reason for waiting
    is printed. Raises `PlacementError` after `wait_s`.
    """
    turn = backend.queue(job, priority)
    deadline = time.monotonic() + wait_s
    told = ""
    while True:
        before = turn.ahead()
        cluster = backend.free()
        found = plan(cluster)
        if not before and not found.unplaced:
            return found, cluster
        why = _why(before, found, backend.others())
        if time.monotonic() > deadline:
            remedy = "wait longer (room_wait_s), end another job (rolemesh stop), or add nodes"
            raise PlacementError(f"there is no room after {wait_s:g} s: {why}", where=where, remedy=remedy)
        if why != told:
            say(f"waiting for room: {why}")
            told = why
        time.sleep(min(LOOK_S, max(0.0, deadline - time.monotonic()) + 0.01))


def _why(before: Sequence[Ahead], plan: PlacementPlan, others: Sequence[str]) -> str:
    if before:
        first = before[0]
        return f"job {first.job}, priority {first.priority}, is before this one" + (
            f", and {len(before) - 1} more" if len(before) > 1 else ""
        )
    first_rank = plan.unplaced[0]
    whose = f"; jobs here: {', '.join(others)}" if others else ""
    count = f" and {len(plan.unplaced) - 1} more" if len(plan.unplaced) > 1 else ""
    return f"{first_rank.ref}{count}: {first_rank.reason}{whose}"
