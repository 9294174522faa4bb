"""An extension of the durable engine that measures memory: ranks in metrics, agents and large ranks in events."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import ClassVar

import msgspec
from pydantic import BaseModel, Field
from rolemesh_durable.api.extensions import (
    AgentPart,
    AgentProcess,
    AgentRecord,
    Extension,
    ExtensionMessage,
    ExtensionRecord,
    MasterExtension,
    MasterParts,
    Rank,
    RankExtension,
    RankRecord,
    Report,
)

__all__ = ["Peak", "Resident", "ResidentOptions"]

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
GRAIN_BYTES = 16 * 1024 * 1024
"""The agent reports each change at once, so it reports a multiple of this."""
STEP_BYTES = 1 << 26
"""Distance between two peaks that a rank reports."""


class ResidentOptions(BaseModel, extra="forbid"):
    """Options of `resident`."""

    every_s: float = Field(default=1.0, ge=0, description="Seconds between two measurements; 0: each step.")
    warn_gb: float = Field(default=64.0, gt=0, description="The status warns about ranks with more memory, in GiB.")


class Peak(ExtensionMessage, frozen=True, tag="resident/peak"):
    """The most memory that a rank has had, in bytes, rounded up to 64 MiB."""

    nbytes: int


class RankIsLarge(ExtensionRecord, frozen=True, tag="rank_is_large"):
    """A rank has more memory than `ResidentOptions.warn_gb`."""

    rank: str
    gib: float


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
        return Memories(parts, self.options.warn_gb)


class RankMemory(RankExtension):
    """Measures one rank after its steps."""

    def __init__(self, rank: Rank, every_s: float) -> None:
        self._rank, self._every_s = rank, every_s
        self._next = 0.0
        self._name = f"resident {rank.ctx.role}/{rank.ctx.rank}"
        self._peak = 0

    def step_done(self, step: int, held: bool) -> None:
        """Measure if it is time."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every_s
            nbytes = resident_bytes()
            self._rank.record({self._name: nbytes})
            if nbytes > self._peak:
                self._peak = -(-nbytes // STEP_BYTES) * STEP_BYTES
                self._rank.tell_master(Peak(self._peak))


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


class Memories(MasterExtension):
    """Journals the memory of each agent when it has doubled, and ranks above a limit. A new master begins again."""

    records = (AgentMemory, RankIsLarge)
    messages = (Peak,)

    def __init__(self, parts: MasterParts, warn_gb: float) -> None:
        super().__init__(parts)
        self._warn_gb = warn_gb
        self._told: dict[str, int] = {}
        self._peaks: dict[str, float] = {}

    def heard(self, rank: RankRecord, message: ExtensionMessage) -> None:
        """Keep the peak of the rank's present process."""
        assert isinstance(message, Peak)
        name, before = str(rank.launch.ref), self._peaks.get(str(rank.launch.ref), 0.0)
        self._peaks[name] = peak = message.nbytes / 2**30
        if before <= self._warn_gb < peak:
            self.tell(RankIsLarge(name, peak))

    def warnings(self) -> Iterable[str]:
        """Name the ranks above the limit."""
        return [f"{name} has up to {peak:.2f} GiB" for name, peak in self._peaks.items() if peak > self._warn_gb]

    def agent_reported(self, agent: AgentRecord, report: Report) -> None:
        """Compare the report with the last record."""
        found = report.part(AgentBytes)
        if found is not None and found.nbytes >= 2 * self._told.get(report.agent, 1):
            self._told[report.agent] = found.nbytes
            self.tell(AgentMemory(report.agent, found.nbytes))


def resident_bytes() -> int:
    """Return the resident memory of this process, from ``/proc/self/statm``."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE_BYTES
