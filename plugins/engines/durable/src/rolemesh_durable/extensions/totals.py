"""The sums of a rank's times, and the state of its edges, for extensions that record them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rolemesh_durable.extensions.calls.phases import SERVING
from rolemesh_durable.protocol.rank.page import COMPUTING, EDGE, FINISHED, IDLE, PHASE, SAVING, SINCE_NS
from rolemesh_durable.rank.services import Rank

__all__ = ["Outgoing", "Totals", "edges_of", "totals_of"]

MOST_READS = 10
"""Maximum number of times that a rank's phase is read until it stays the same: fast ranks change it all the time."""


class Totals(NamedTuple):
    """The times of a rank's process by their use, in nanoseconds. Waits inside an operator are not computing.

    - `finished`: the last finished step; -1 if there is none.
    - `computing`: in operators that have ended.
    - `edges`: for each edge of the role, in waits for its values, or for consumers that take them.
    - `idling`: until the master lets it run further. `saving`: in snapshots.
    - `now`: the present phase, its edge, and the time at which it began; 0 if the rank is between two phases.
    - `around`: the same of the wait in which the rank serves a call or takes a snapshot now, or of the operator within
      which it waits.
    """

    finished: int
    computing: int
    edges: Mapping[int, int]
    idling: int
    saving: int
    now: tuple[int, int, int]
    around: tuple[int, int, int] = IDLE, -1, 0


def totals_of(rank: Rank) -> Totals:
    """Return the times of the rank's process so far. Any thread may ask."""
    fields, meter, graph, role = rank.status_page.fields, rank.meter, rank.job.graph, rank.ctx.role
    edges = [e.id for e in graph.edges if role in (graph.ops[e.src].role, graph.ops[e.dst].role)]
    for _read in range(MOST_READS):  # a wait that ends meanwhile would be neither in its sum nor the present phase
        now = phase, _, since = fields[PHASE], fields[EDGE], fields[SINCE_NS]
        waits, operator = rank.status_page.waits(edges), (COMPUTING, -1, meter.began)
        around = meter.around if phase in (SERVING, SAVING) else operator if operator[2] < since else (IDLE, -1, 0)
        if now == (fields[PHASE], fields[EDGE], fields[SINCE_NS]):
            break
    if phase == COMPUTING and since < meter.ended:
        now = IDLE, -1, 0  # the operator has ended, and the rank is on its way to the next phase
    return Totals(fields[FINISHED], meter.busy, waits, meter.idling, meter.saving, now, around)


class Outgoing(NamedTuple):
    """A producer rank's end of an edge.

    - `sent`: bytes of the values that this process has sent. A part for several consumers counts once.
    - `under_way`: values that some consumer has not released.
    - `credits`: values that the rank may send now; -1 if only their bytes are limited.
    """

    sent: int
    under_way: int
    credits: int


def edges_of(rank: Rank) -> tuple[dict[int, Outgoing], dict[int, int]]:
    """Return the rank's ends of its edges by number: those at which it produces, and those at which it consumes.

    For the latter, the number is that of complete values that no step has taken. Any thread may ask.
    """
    ends = {}
    for out_edge in tuple(rank.ports.out_edges):
        state, under_way = out_edge.state, out_edge.state.under_way
        free = -1 if out_edge.edge.credits is None else max(0, state.window - under_way)
        ends[out_edge.edge.id] = Outgoing(state.sent_bytes, under_way, free if state.credit else 0)
    return ends, {port.edge.id: port.state.waiting for ports in [*rank.ports.inputs.values()] for _, port in ports}
