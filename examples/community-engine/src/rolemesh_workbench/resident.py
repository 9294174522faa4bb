"""An extension of the durable engine that writes the memory of each rank into the lines of metrics."""

from __future__ import annotations

import os
import time
from typing import ClassVar

from pydantic import BaseModel, Field
from rolemesh_durable.api.extensions import Extension, Rank, RankExtension

__all__ = ["Resident", "ResidentOptions"]

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ResidentOptions(BaseModel, extra="forbid"):
    """Options of `resident`."""

    every_s: float = Field(default=1.0, ge=0, description="Seconds between two measurements of a rank; 0: each step.")


class Resident(Extension):
    """Adds the record ``resident <role>/<rank>``, in bytes, to the line of a step."""

    Options: ClassVar[type[BaseModel]] = ResidentOptions
    options: ResidentOptions

    def in_rank(self, rank: Rank) -> RankExtension:
        """Take part in every rank."""
        return RankMemory(rank, self.options.every_s)


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


def resident_bytes() -> int:
    """Return the resident memory of this process, from ``/proc/self/statm``."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE_BYTES
