"""The traffic on each edge of a flow: queues, credits, bytes and values per second, staleness. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rolemesh.api.rank_ref import RankRef
from rolemesh_facts.time_use import Use
from rolemesh_recorder.lines import FlowEdge, FlowFile

__all__ = ["EdgeState", "edge_states"]


class EdgeState(NamedTuple):
    """The state of edge number `edge`, over all its ranks. None stands for an unknown number.

    - `queue`: complete values that wait at the consumer rank with the most.
    - `under_way`: values of the producer rank with the most that some consumer has not released.
    - `credits`: values that the producer rank with the fewest may still send; -1 if only their bytes are limited.
    - `bytes_s`: bytes per second that all producers send. A part for several consumers counts once.
    - `values_s`: values per second that a consumer rank takes, on average.
    - `staleness`: steps between a value and its use.
    - `saved`: share of the bytes of values, once for each consumer, that did not travel, because the transport sends
      less than all: from 0 to 1, and below 0 if more has travelled.
    """

    edge: int
    queue: int | None
    under_way: int | None
    credits: int | None
    bytes_s: float | None
    values_s: float | None
    staleness: float | None
    saved: float | None = None


def edge_states(flow: FlowFile, uses: Mapping[RankRef, Use], staleness: Mapping[str, float]) -> list[EdgeState]:
    """Return the state of each edge. `staleness` is that of a line of metrics (`StepMetrics`)."""
    roles: dict[str, list[Use]] = {}
    for ref, use in uses.items():
        if use.wall:
            roles.setdefault(ref.role, []).append(use)
    found = []
    for edge in flow.edges:
        source, target = flow.ops[edge.src], flow.ops[edge.dst]
        makers = [use for use in roles.get(source.role, ()) if edge.id in use.ends]
        takers = roles.get(target.role, [])
        credits_ = [use.ends[edge.id][1] for use in makers]
        steps_s = [use.steps / use.wall * 1e6 for use in takers]
        found.append(
            EdgeState(
                edge.id,
                max((use.queued[edge.id] for use in takers if edge.id in use.queued), default=None),
                max((use.ends[edge.id][0] for use in makers), default=None),
                _fewest(credits_),
                sum(use.sent.get(edge.id, 0.0) / use.wall * 1e6 for use in makers) if makers else None,
                sum(steps_s) / len(steps_s) / target.every if steps_s else None,
                _staleness(flow, edge, staleness),
                _saved([use.travelled[edge.id] for use in (*makers, *takers) if edge.id in use.travelled]),
            )
        )
    return found


def _saved(travelled: Sequence[tuple[float, float]]) -> float | None:
    nbytes = sum(each[0] for each in travelled)
    return 1 - sum(each[1] for each in travelled) / nbytes if nbytes else None


def _fewest(credits_: Iterable[int]) -> int | None:
    found = [*credits_]
    limited = [each for each in found if each >= 0]
    return min(limited) if limited else -1 if found else None


def _staleness(flow: FlowFile, edge: FlowEdge, said: Mapping[str, float]) -> float | None:
    source, target = flow.ops[edge.src].label, flow.ops[edge.dst].label
    if edge.lag.isdigit():
        return said.get(f"{source} → {target}", float(edge.lag))
    return said.get(target)
