"""An extension of the durable engine that measures memory: ranks in lines of metrics, agents in events."""

from __future__ import annotations

import os
import time
from typing import ClassVar

import msgspec
from pydantic import BaseModel, Field
from rolemesh_durable.api.extensions import (
    AgentPart,
    AgentProcess,
    AgentRecord,
    Extension,
    ExtensionRecord,
    MasterExtension,
    MasterParts,
    Rank,
    RankExtension,
    Report,
)

__all__ = ["Resident", "ResidentOptions"]

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
GRAIN_BYTES = 16 * 1024 * 1024
"""The agent reports each change at once, so it reports a multiple of this."""


class ResidentOptions(BaseModel, extra="forbid"):
    """Options of `resident`."""

    every_s: float = Field(default=1.0, ge=0, description="Seconds between two measurements; 0: each step.")


class Resident(Extension):
    """Adds the record ``resident <role>/<rank>``, in bytes, to the line of a step.

    The event ``agent_memory`` says how much memory an agent's process has, at first and each time it has doubled.
    """

    Options: ClassVar[type[BaseModel]] = ResidentOptions
    options: ResidentOptions

    def in_rank(self, rank: Rank) -> RankExtension:
        """Take part in every rank."""
        return RankMemory(rank, self.options.every_s)

    def in_agent(self, process: AgentProcess) -> AgentPart:
        """Take part in every agent."""
        return OwnMemory(process, self.options.every_s)

    def in_master(self, parts: MasterParts) -> MasterExtension:
        """Take part in the master's machine."""
        return AgentMemories(parts)


class RankMemory(RankExtension):
    """Measures one rank after its steps."""

    def __init__(self, rank: Rank, every_s: float) -> None:
        self._rank, self._every_s = rank, every_s
        self._next = 0.0
        self._name = f"resident {rank.ctx.role}/{rank.ctx.rank}"

    def step_done(self, step: int, held: bool) -> None:
        """Measure if it is time."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every_s
            self._rank.record({self._name: resident_bytes()})


class AgentBytes(msgspec.Struct, frozen=True, tag="resident.agent"):
    """The memory of an agent's process, as a part of its reports."""

    nbytes: int


class OwnMemory(AgentPart):
    """Measures the agent that it lives in."""

    def __init__(self, process: AgentProcess, every_s: float) -> None:
        super().__init__(process)
        self._every_s, self._next = every_s, 0.0
        self._last: AgentBytes | None = None

    def report(self) -> AgentBytes | None:
        """Return the last measurement, after a new one if it is time."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every_s
            self._last = AgentBytes(resident_bytes() // GRAIN_BYTES * GRAIN_BYTES)
        return self._last


class AgentMemory(ExtensionRecord, frozen=True, tag="agent_memory"):
    """The memory of an agent's process, in bytes."""

    agent: str
    nbytes: int


class AgentMemories(MasterExtension):
    """Journals the memory of each agent when it has doubled. A new master begins from scratch."""

    records = (AgentMemory,)

    def __init__(self, parts: MasterParts) -> None:
        super().__init__(parts)
        self._told: dict[str, int] = {}

    def agent_reported(self, agent: AgentRecord, report: Report) -> None:
        """Compare the report with the last record."""
        found = report.part(AgentBytes)
        if found is not None and found.nbytes >= 2 * self._told.get(report.agent, 1):
            self._told[report.agent] = found.nbytes
            self._context.tell(AgentMemory(report.agent, found.nbytes))


def resident_bytes() -> int:
    """Return the resident memory of this process, from ``/proc/self/statm``."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE_BYTES
