"""Inject failures into an agent and its ranks, for rehearsals."""

from __future__ import annotations

import os
import signal

from rolemesh_durable import faults
from rolemesh_durable.agent.memory import NodeMemory
from rolemesh_durable.agent.zygote_pool import ZygotePool
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.refs import StartRef

__all__ = ["fail"]


def fail(kind: m.FaultKind, rank: StartRef | None, pid: int, memory: NodeMemory, zygotes: ZygotePool) -> None:
    """Inject the failure into `rank`, or into the agent if `rank` is None. `pid` is its process."""
    match kind:
        case "disk":
            memory.fail_next()
        case "zygote":
            zygotes.kill_zygote()
        case "clock":
            faults.step_clock()
        case "full":
            faults.fill([pid])
        case "stop" if rank is not None:
            zygotes.freeze(rank)
        case _ if rank is not None:
            zygotes.kill(rank)
        case _:
            os.kill(pid, signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
