"""Who talks to whom: the ranks whose addresses a rank needs, from the graph alone."""

from __future__ import annotations

from collections.abc import Mapping

from rolemesh.api.partition import Balanced
from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.routes import Route, route
from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.rank_key import RankKey

__all__ = ["Neighbours"]


class Neighbours:
    """The ranks at the other ends of a rank's edges and calls, itself, those with which it shares rows out, and of a
    collective group rank 0: of that one, all."""

    def __init__(self, graph: LogicalGraph, world_sizes: Mapping[str, int]) -> None:
        self._graph, self._sizes = graph, world_sizes
        self._routes: dict[str, list[tuple[Route, str, bool]]] = {}
        """By role: the routes of its edges, the role at the other end, and whether that one takes."""
        self._known: dict[tuple[RankKey, bool], frozenset[RankKey]] = {}

    def resized(self, layout: Layout) -> Neighbours:
        """Those of `layout`, where these are of the sizes that the job began with."""
        return Neighbours(self._graph, layout.world_sizes(self._sizes))

    def of(self, key: RankKey, collective: bool) -> frozenset[RankKey]:
        """Those of the rank `key`."""
        found = self._known.get((key, collective))
        if found is None:
            found = self._known[key, collective] = frozenset(self._found(*key, collective))
        return found

    def _found(self, role: str, rank: int, collective: bool) -> set[RankKey]:
        found = {(role, rank), (role, 0)} if collective else {(role, rank)}
        if (collective and rank == 0) or self._shares(role):
            found |= {(role, mate) for mate in range(self._sizes[role])}
        for caller, callee in self._graph.callers:
            other = {caller: callee, callee: caller}.get(role, "")
            found |= {(other, peer) for peer in range(self._sizes[other])} if other else set()
        for way, other, gives in self._edges(role):
            found |= {(other, peer) for peer in (way.targets(rank) if gives else way.sources(rank))}
        return found

    def _shares(self, role: str) -> bool:
        """Whether its ranks share rows out among themselves."""
        ops = self._graph.ops
        return any(isinstance(e.dst_partition, Balanced) and ops[e.dst].role == role for e in self._graph.edges)

    def _edges(self, role: str) -> list[tuple[Route, str, bool]]:
        if role not in self._routes:
            edges = self._routes[role] = []
            for edge in self._graph.edges:
                src, dst = self._graph.ops[edge.src].role, self._graph.ops[edge.dst].role
                if role in (src, dst):
                    way = route(edge.src_partition, self._sizes[src], edge.dst_partition, self._sizes[dst])
                    edges += [(way, dst, True)] if role == src else []
                    edges += [(way, src, False)] if role == dst else []
        return self._routes[role]
