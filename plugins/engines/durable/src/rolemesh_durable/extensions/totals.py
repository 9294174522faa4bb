"""The sums of a rank's times, for extensions that account for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rolemesh_durable.protocol.rank.page import COMPUTING, EDGE, FINISHED, IDLE, PHASE, SINCE_NS
from rolemesh_durable.rank.services import Rank

__all__ = ["Totals", "totals_of"]


class Totals(NamedTuple):
    """The times of a rank's process by their use, in nanoseconds. Waits inside an operator are not computing.

    - `finished`: the last finished step; -1 if there is none.
    - `computing`: in operators that have ended.
    - `edges`: for each edge of the role, in waits for its values, or for consumers that take them.
    - `idling`: in waits for the master's grants. `saving`: in snapshots.
    - `now`: the present phase, its edge, and the time at which it began; 0 if the rank is between two phases.
    """

    finished: int
    computing: int
    edges: Mapping[int, int]
    idling: int
    saving: int
    now: tuple[int, int, int]


def totals_of(rank: Rank) -> Totals:
    """Return the times of the rank's process so far. Any thread may ask."""
    fields, meter, graph, role = rank.status_page.fields, rank.meter, rank.job.graph, rank.ctx.role
    edges = (e.id for e in graph.edges if role in (graph.ops[e.src].role, graph.ops[e.dst].role))
    waits = rank.status_page.waits(edges)
    now = phase, _, since = fields[PHASE], fields[EDGE], fields[SINCE_NS]
    if phase == COMPUTING and since < meter.ended:
        now = IDLE, -1, 0  # the operator has ended, and the rank is on its way to the next phase
    return Totals(fields[FINISHED], meter.busy, waits, meter.idling, meter.saving, now)
