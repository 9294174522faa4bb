"""The phases that a rank is in, and the places of the fields in which it shows where it is."""

from __future__ import annotations

from typing import Final, Protocol

from rolemesh.api.rank_ref import RankRef
from rolemesh.graph.logical import LogicalGraph

__all__ = [
    "ANSWERED",
    "BLOCKED",
    "BUSY_NS",
    "CALLING",
    "CALLS",
    "COMPUTED_NS",
    "COMPUTING",
    "DONE",
    "EDGE",
    "FIELDS",
    "FINISHED",
    "FOLLOWING",
    "GATHERING",
    "GENERATION",
    "GRANTED",
    "IDLE",
    "LAYOUT",
    "LOADING",
    "OP",
    "PHASE",
    "PHASES",
    "PID",
    "REFUSED",
    "SAVING",
    "SERVING",
    "SHORT",
    "SINCE_NS",
    "SNAPSHOT",
    "STEP",
    "STOPPING",
    "TOTAL",
    "TURN",
    "WAITING",
    "Fields",
    "Page",
    "called_at",
    "position_of",
]

IDLE: Final = 0
"""The rank is between steps, or waits for a grant."""
COMPUTING: Final = 1
"""An operator runs."""
WAITING: Final = 2
"""The rank waits for an input."""
BLOCKED: Final = 3
"""The rank waits for a credit, for a commit that frees retained values, or for shared memory."""
TURN: Final = 4
"""The rank waits for its turn, on a slot whose ranks run one after the other."""
GATHERING: Final = 5
"""The rank waits for the rest of its collective group, before a call."""
CALLING: Final = 6
"""The rank waits for the answer to a call: see `position_of`."""
SERVING: Final = 7
"""The rank runs a call of another role."""
FOLLOWING: Final = 8
"""The rank waits until the roles that call it have finished the step."""
SAVING: Final = 9
"""The rank takes a snapshot."""
LOADING: Final = 10
"""The rank loads for its turn on a slot, or makes room there."""

PHASES: Final = (
    "idle", "computing", "waiting", "blocked", "turn", "gathering", "calling", "serving", "following", "saving",
    "loading",
)  # fmt: skip
"""The names of the phases by their number."""

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


def position_of(pair: int, rank: int) -> int:
    """Return the value of `EDGE` while the rank waits for a call to `rank` (-1: any) between roles of number `pair`."""
    return -2 - (pair << 20 | rank + 1)


def called_at(position: int, graph: LogicalGraph) -> RankRef | None:
    """Return the role and rank of `position_of`; None if `position` is not that of a call."""
    pair, rank = divmod(-2 - position, 1 << 20)
    return RankRef(graph.callers[pair][1], rank - 1) if 0 <= pair < len(graph.callers) else None
