"""The ranks whose addresses a rank needs, from the graph alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from rolemesh.api.rank_ref import RankRef
from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.routes import Route
from rolemesh_durable.protocol.delivery import delivery_of
from rolemesh_durable.protocol.layout import Layout

__all__ = ["Neighbours"]


class Neighbours:
    """The ranks that a rank talks to.

    They are the rank itself, the ranks at the other ends of its edges and calls, and the mates with which it shares
    rows by demand. In a collective group, they include rank 0; rank 0 talks to all of the group.
    """

    def __init__(self, graph: LogicalGraph, world_sizes: Mapping[str, int]) -> None:
        self._graph, self._sizes = graph, world_sizes
        self._always, self._routes, self._found = cache(self._always_of), cache(self._routes_of), cache(self._found_by)

    def resized(self, layout: Layout) -> Neighbours:
        """Return the neighbours under `layout`. Call it only on the neighbours of the job's first sizes."""
        return Neighbours(self._graph, layout.world_sizes(self._sizes))

    def of(self, key: RankRef, collective: bool) -> frozenset[RankRef]:
        """Return the ranks that rank `key` talks to."""
        return self._found(*key, collective)

    def _found_by(self, role: str, rank: int, collective: bool) -> frozenset[RankRef]:
        found = {RankRef(role, rank), *self._always(role)}
        if collective:
            found |= self._all(role) if rank == 0 else {RankRef(role, 0)}
        for route, other, gives in self._routes(role):
            found |= {RankRef(other, peer) for peer in (route.targets(rank) if gives else route.sources(rank))}
        return frozenset(found)

    def _all(self, role: str) -> set[RankRef]:
        return {RankRef(role, rank) for rank in range(self._sizes[role])}

    def _always_of(self, role: str) -> set[RankRef]:
        """Return the ranks that each rank of `role` talks to: at the other ends of calls, and mates that share rows."""
        inputs = [edge for edge in self._graph.edges if self._graph.ops[edge.dst].role == role]
        found = self._all(role) if any(delivery_of(edge).shared is not None for edge in inputs) else set[RankRef]()
        for caller, callee in self._graph.callers:
            if role in (caller, callee):
                found |= self._all(callee if role == caller else caller)
        return found

    def _routes_of(self, role: str) -> list[tuple[Route, str, bool]]:
        """Return the edges of `role`: the route, the role at the other end, and True if that role consumes."""
        edges: list[tuple[Route, str, bool]] = []
        for edge in self._graph.edges:
            src, dst = self._graph.ops[edge.src].role, self._graph.ops[edge.dst].role
            if role in (src, dst):
                route = delivery_of(edge).route(self._sizes[src], self._sizes[dst])
                edges += [(route, dst, True)] if role == src else []
                edges += [(route, src, False)] if role == dst else []
        return edges
