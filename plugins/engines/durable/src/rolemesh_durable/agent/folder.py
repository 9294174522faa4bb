"""Recreate an agent's folder in shared memory if somebody has removed it."""

from __future__ import annotations

import logging

from rolemesh.errors import RolemeshError
from rolemesh_durable.agent.memory import NodeMemory
from rolemesh_processes.guard import AgentGuard
from rolemesh_processes.reserve import Reserve

__all__ = ["look_after"]

LOG = logging.getLogger(__name__)


def look_after(guard: AgentGuard, reserve: Reserve, memory: NodeMemory, timeline: int) -> None:
    """Recreate the folder if it is gone, so that ranks can continue to write snapshots, and refill its reserve."""
    if guard.lost:
        LOG.warning("somebody has removed %s; it is made again", guard.shm)
        try:
            guard.renew()
            reserve.forget()
            memory.renew(timeline, reserve.make)
        except (OSError, RolemeshError) as error:
            LOG.warning("it cannot be made: %s", error)
    reserve.fill()
