"""The phases that a rank is in, and the places of the fields in which it shows where it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

__all__ = [
    "ADDED", "ANSWERED", "BLOCKED", "BUSY_NS", "CALLS", "COMPUTED_NS", "COMPUTING", "DONE", "EDGE", "FIELDS",
    "FINISHED", "GENERATION", "GRANTED", "IDLE", "LAYOUT", "OP", "PHASE", "PHASES", "PID", "REFUSED", "SAVING", "SHORT",
    "SINCE_NS", "SNAPSHOT", "STEP", "STOPPING", "TOTAL", "WAITING", "AddedPhase", "Fields", "Page", "add_phase",
]  # fmt: skip

IDLE: Final = 0
"""The rank is between steps, or waits for a grant."""
COMPUTING: Final = 1
"""An operator runs."""
WAITING: Final = 2
"""The rank waits for an input."""
BLOCKED: Final = 3
"""The rank waits for a credit, for a commit that frees retained values, or for shared memory."""
SAVING: Final = 9
"""The rank takes a snapshot."""

PHASES: Final = {IDLE: "idle", COMPUTING: "computing", WAITING: "waiting", BLOCKED: "blocked", SAVING: "saving"}
"""The names of the phases by their number: those of the core, and those that extensions add."""


class AddedPhase(NamedTuple):
    """A phase that an extension adds.

    - `number`: from 4 on, unlike that of any other phase.
    - `waits_for`: called with a picture of all ranks, a rank in this phase, and its report. It returns the ranks that
      this one waits for, and the reason (`rolemesh_durable.extensions.hangs.picture`). None: the rank works.
    - `told`: called in the same way, and with the operator, its step and the seconds in words. It returns what the rank
      has done for that time, and what is strange about it if the rank waits for no other.
    - `brief`: its spans count however short they are.
    """

    number: int
    name: str
    told: Callable[..., tuple[str, str]]
    waits_for: Callable[..., Any] | None = None
    brief: bool = False


ADDED: Final[dict[int, AddedPhase]] = {}
"""The phases that extensions have added, by their number."""


def add_phase(phase: AddedPhase) -> int:
    """Add a phase, and return its number. Raise `ValueError` if another one has it."""
    if PHASES.setdefault(phase.number, phase.name) != phase.name:
        raise ValueError(f"phase {phase.number} is {PHASES[phase.number]!r} already, not {phase.name!r}")
    ADDED[phase.number] = phase
    return phase.number


PID, GENERATION, FINISHED, STEP, OP, PHASE, EDGE, SINCE_NS, SNAPSHOT, BUSY_NS, REFUSED, SHORT = range(12)
STOPPING, DONE, TOTAL, GRANTED, LAYOUT, COMPUTED_NS, CALLS, ANSWERED = range(12, 20)
"""The fields by their place."""
FIELDS: Final = 20


class Fields(Protocol):
    """Integers by their place."""

    def __getitem__(self, at: int, /) -> int: ...

    def __setitem__(self, at: int, value: int, /) -> None: ...


class Page(Protocol):
    """The page on which a rank shows its position."""

    @property
    def fields(self) -> Fields:
        """The fields, by the places above; times in ns of the rank's clock."""

    def waited(self, edge: int, ns: int) -> None:
        """The rank has waited `ns` for edge number `edge`; -1: for something else."""
