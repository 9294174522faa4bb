"""The lags of edges, as scalers need them. Pure."""

from __future__ import annotations

from rolemesh.graph.logical import Edge, LogicalGraph

__all__ = ["lag_of"]


def lag_of(graph: LogicalGraph, edge: Edge) -> int:
    """Return how many steps before a value was made that the consumer's own values of a step depend on.

    This is the lag of `edge`, and one more if the consumer takes the value behind all calls that send to other roles.
    """
    role = graph.ops[edge.dst].role
    sends = [each.src for each in graph.edges if graph.ops[each.src].role == role != graph.ops[each.dst].role]
    return edge.lag + (bool(sends) and max(sends) < edge.dst)
