"""Admission of a job to nodes that others use, too: wait for its turn, and for resources that others hold."""

from __future__ import annotations

import time
from collections.abc import Callable

from rolemesh.api.cluster import ClusterView
from rolemesh.errors import PlacementError
from rolemesh.placement import PlacementPlan
from rolemesh_durable.backends import Turn

__all__ = ["find_room"]

LOOK_S = 0.5


def find_room(turn: Turn, wait_s: float, where: str, say: Callable[[str], None]) -> tuple[PlacementPlan, ClusterView]:
    """Return a plan on free resources when it is this job's turn, and the nodes that it was made for.

    The caller has checked that the job fits on these nodes if nobody else uses them. `say` takes each change of the
    reason for waiting. Raises `PlacementError` after `wait_s`.
    """
    deadline = time.monotonic() + wait_s
    told = ""
    while isinstance(found := turn.look(), str):
        if time.monotonic() > deadline:
            remedy = "wait longer (room_wait_s), end another job (rolemesh stop), or add nodes"
            raise PlacementError(f"there is no room after {wait_s:g} s: {found}", where=where, remedy=remedy)
        if found != told:
            say(found)
            told = found
        time.sleep(min(LOOK_S, max(0.0, deadline - time.monotonic()) + 0.01))
    return found
