"""Turns: ranks that share a slot's memory run one after the other, in the order of the static schedule. Pure.

Every rank has a row on a page that all ranks of its slot see: the position of its next turn, and whether it is loaded.
It may load once no other rank's position is before its own and no later rank is loaded. Positions order everything that
ranks do in a job, alike on every node. A turn waits only for earlier positions. So the rank with the lowest position
can always continue, and no two slots wait for each other. (A total order on resources: Havender 1968, "Avoiding
deadlock in multitasking systems".)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.schedule import flow_order

__all__ = ["ABSENT", "STARTING", "Positions", "Row", "is_before", "is_free"]

STARTING: Final = -1
"""The position of a rank that starts: before all others."""
ABSENT: Final = 1 << 62
"""The position of a rank that needs no turn: its process is gone, or all of its steps are done."""


class Row(NamedTuple):
    """A rank's row: the position of its next turn, and whether it is (or is about to be) `loaded`."""

    position: int
    loaded: bool = False


def is_before(rows: Sequence[Row], me: int) -> bool:
    """Return True if another rank's turn is before that of rank number `me`."""
    mine = rows[me].position
    return any(row.position < mine for row in rows)


def is_free(rows: Sequence[Row], me: int) -> bool:
    """Return True if rank number `me` may load: its turn has come, and no other rank has loaded for a later one.

    Ranks of one role in one call have equal positions and run together.
    """
    mine = rows[me].position
    return not any(row.position < mine or (row.loaded and row.position > mine) for row in rows)


class Positions:
    """The positions of a job's turns.

    Set-ups come first, role by role, whatever step a rank starts from: ranks that are far behind may need its earlier
    values. Then calls come, step by step, in the flow's order. Before those of a step come the calls that are repeated
    to restore a stateless rank to it. The last snapshots come last, role by role.
    """

    def __init__(self, graph: LogicalGraph) -> None:
        self._role = {role: number for number, role in enumerate(graph.roles)}
        self._call = {op.id: number for number, op in enumerate(flow_order(graph))}

    def setup(self, role: str) -> int:
        """Return the position at which `role` sets up, and restores its state."""
        return self._role[role]

    def repeat(self, op: int, resume: int) -> int:
        """Return the position at which call `op` is repeated after a restore to step `resume`."""
        return self._step(resume + 1) + self._call[op]

    def call(self, op: int, step: int) -> int:
        """Return the position of call `op` of `step`."""
        return self._step(step) + len(self._call) + self._call[op]

    def last(self, role: str, steps: int) -> int:
        """Return the position at which `role` gives its last snapshot, after `steps` steps."""
        return self._step(steps) + self._role[role]

    def _step(self, step: int) -> int:
        return len(self._role) + step * 2 * len(self._call)
