"""The ranks whose addresses a rank needs, from the graph alone."""

from __future__ import annotations

from collections.abc import Mapping

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
        self._routes: dict[str, list[tuple[Route, str, bool]]] = {}
        """The edges of each role: the route, the role at the other end, and True if that role consumes."""
        self._known: dict[tuple[RankRef, bool], frozenset[RankRef]] = {}

    def resized(self, layout: Layout) -> Neighbours:
        """Return the neighbours under `layout`. Call it only on the neighbours of the job's first sizes."""
        return Neighbours(self._graph, layout.world_sizes(self._sizes))

    def of(self, key: RankRef, collective: bool) -> frozenset[RankRef]:
        """Return the ranks that rank `key` talks to."""
        found = self._known.get((key, collective))
        if found is None:
            found = self._known[key, collective] = frozenset(self._found(*key, collective))
        return found

    def _found(self, role: str, rank: int, collective: bool) -> set[RankRef]:
        found = {RankRef(role, rank), RankRef(role, 0)} if collective else {RankRef(role, rank)}
        if (collective and rank == 0) or self._shares(role):
            found |= {RankRef(role, mate) for mate in range(self._sizes[role])}
        for caller, callee in self._graph.callers:
            other = {caller: callee, callee: caller}.get(role, "")
            found |= {RankRef(other, peer) for peer in range(self._sizes[other])} if other else set()
        for way, other, gives in self._edges(role):
            found |= {RankRef(other, peer) for peer in (way.targets(rank) if gives else way.sources(rank))}
        return found

    def _shares(self, role: str) -> bool:
        """Return True if ranks of `role` share rows among themselves by demand."""
        inputs = [edge for edge in self._graph.edges if self._graph.ops[edge.dst].role == role]
        return any(delivery_of(edge).shared is not None for edge in inputs)

    def _edges(self, role: str) -> list[tuple[Route, str, bool]]:
        if role not in self._routes:
            edges = self._routes[role] = []
            for edge in self._graph.edges:
                src, dst = self._graph.ops[edge.src].role, self._graph.ops[edge.dst].role
                if role in (src, dst):
                    way = delivery_of(edge).route(self._sizes[src], self._sizes[dst])
                    edges += [(way, dst, True)] if role == src else []
                    edges += [(way, src, False)] if role == dst else []
        return self._routes[role]
