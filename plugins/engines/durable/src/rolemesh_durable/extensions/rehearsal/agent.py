"""The agent's part of a rehearsal: it injects failures into the agent and its ranks."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rolemesh_durable.extensions.rehearsal import faults
from rolemesh_durable.extensions.rehearsal.messages import ChildKilled, Inject
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent.part import AgentPart, AgentProcess, Seen
from rolemesh_durable.protocol.refs import StartRef
from rolemesh_processes.facts import children

__all__ = ["AgentInjector"]


class AgentInjector(AgentPart):
    """Injects failures when the master asks."""

    def __init__(self, process: AgentProcess) -> None:
        super().__init__(process)
        self._waiting: set[StartRef] = set()
        """The ranks whose next child process is to be killed."""

    def messages(self) -> Mapping[type, Callable[[Any], None]]:
        """The master's order."""
        return {Inject: self._inject}

    def _inject(self, order: Inject) -> None:
        """Inject a failure into a rank that has a process, or into this agent."""
        process, kind = self._process, order.kind
        rank = process.machine().ranks.get(order.ref)
        if order.rank >= 0 and (rank is None or not rank.alive or rank.life == "halting"):
            return
        match kind:
            case "exit" | "raise":
                if rank is not None and rank.hello is not None:
                    process.to_rank(order.ref, m.Fault(kind))
            case "disk":
                process.fail_next_write()
            case "zygote":
                process.processes.kill_zygote()
            case "clock":
                faults.step_clock()
            case "full":
                faults.fill([process.pid(order.ref) if rank is not None else os.getpid()])
            case "child" if rank is not None:
                self._waiting.add(rank.start)
            case "stop" if rank is not None:
                process.processes.freeze(rank.start)
            case _ if rank is not None:
                process.processes.kill(rank.start)
            case _:
                os.kill(os.getpid(), signal.SIGSTOP if kind == "stop" else signal.SIGKILL)

    def look(self) -> Seen:
        """Kill a child process of each rank that waits for this, as soon as it has one."""
        for start in tuple(self._waiting):
            pid = self._process.pid(start.ref)
            found = children(pid) if pid > 0 else []
            if found:
                pid, name = random.choice(found), ""
                with suppress(OSError):
                    name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
                    os.kill(pid, signal.SIGKILL)
                    self._waiting.discard(start)
                    self._process.send(ChildKilled(start.role, start.rank, pid, name))
        return Seen()

    def gone(self, start: StartRef) -> None:
        """A rank that is gone has no child processes."""
        self._waiting.discard(start)
