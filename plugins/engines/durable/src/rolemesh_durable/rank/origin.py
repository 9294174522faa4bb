"""Values that were on their way when a snapshot was persisted, for consumers of a job that goes on from it.

A consumer's value is put together from the files of the old producers. If its role has another world size now, what
the old consumers would have got is cut again by its partition, as if they handed it to the new ones.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from rolemesh.graph.logical import Edge, LogicalGraph
from rolemesh.graph.routes import Collate, RouteError, route
from rolemesh.graph.values import combine, gather, select
from rolemesh_durable.checkpoint import disk, in_flight
from rolemesh_durable.checkpoint.layout import SnapshotError
from rolemesh_durable.checkpoint.trust import read_edges
from rolemesh_durable.protocol.delivery import delivery_of

__all__ = ["Origin"]


class Origin:
    """The persisted snapshot in `folder`, as rank `rank` of `world_size` of a consuming role sees it."""

    def __init__(
        self, folder: str | Path, graph: LogicalGraph, rank: int, world_size: int, *, trusted: bool = False
    ) -> None:
        """`trusted`: objects in its files may be unpickled, which runs what they say."""
        self._folder = Path(folder)
        self._graph = graph
        self._trusted = trusted
        self._rank, self._size = rank, world_size
        self._manifest = disk.read_manifest(self._folder)
        self._read = lru_cache(maxsize=None)(self._records)

    def values(self, edge: Edge) -> dict[int, Any]:
        """The rank's whole values on `edge`, by the step they were made at.

        Raises `SnapshotError` for files that are damaged or hold pickled objects, unless they are trusted, and for a
        value that cannot be cut for this world size.
        """
        source, target = self._graph.ops[edge.src].role, self._graph.ops[edge.dst].role
        producers, consumers = (self._manifest.world_sizes[role] for role in (source, target))
        steps = sorted({r.step for p in range(producers) for r in self._read(source, p) if r.edge == edge.id})
        if not steps:
            return {}
        old = route(edge.src_partition, producers, edge.dst_partition, consumers)
        if consumers == self._size:
            return {step: self._value(edge, source, step, old, self._rank) for step in steps}
        try:
            held = delivery_of(edge).held
            anew = route(held, consumers, held, self._size)
        except RouteError as error:
            raise SnapshotError(
                f"{edge.param!r} was on its way to {consumers} ranks, and cannot be cut for {self._size}: {error.why}",
                where=str(self._folder),
                remedy=f"resume with world_size {consumers} of role {target}",
            ) from error
        found = {}
        for step in steps:
            parts = []
            for before in anew.sources(self._rank):
                selection = anew.sends_to(before, self._rank)
                assert selection is not None
                parts.append(select(self._value(edge, source, step, old, before), selection))
            found[step] = combine(parts, anew.combine)
        return found

    def items(self, edge: Edge) -> dict[int, list[Any]]:
        """As `values`, of an edge of which the rank takes items: those of each step. Raises `SnapshotError`."""
        source, target = self._graph.ops[edge.src].role, self._graph.ops[edge.dst].role
        producers, consumers = (self._manifest.world_sizes[role] for role in (source, target))
        if consumers != self._size:
            raise SnapshotError(
                f"{edge.param!r} was on its way to {consumers} ranks, each of which had taken some items",
                where=str(self._folder),
                remedy=f"resume with world_size {consumers} of role {target}",
            )
        found: dict[int, list[Any]] = {}
        for producer in range(producers):
            for record in self._read(source, producer):
                if record.edge == edge.id and self._rank in record.consumers and not record.end:
                    found.setdefault(record.step, []).append(record.value())
        return found

    def taken(self, edge: Edge, step: int) -> bytes | None:
        """What the rank itself had taken from the edge by `step`, as it was logged."""
        own = self._read(self._graph.ops[edge.dst].role, self._rank)
        return next((r.header for r in own if r.edge == edge.id and r.step == step and r.end and r.header), None)

    def _value(self, edge: Edge, role: str, step: int, old: Any, consumer: int) -> Any:
        parts = []
        for producer in old.sources(consumer):
            chunks = {
                r.chunk: r
                for r in self._read(role, producer)
                if r.edge == edge.id and r.step == step and consumer in r.consumers and not r.end
            }
            if not chunks and not isinstance(old.combine, Collate):
                raise SnapshotError(
                    f"the value of {edge.param!r} that {role}/{producer} made at step {step} is missing",
                    where=str(self._folder),
                    remedy="'rolemesh checkpoint list' shows other steps",
                )
            parts.append([chunks[number].value() for number in sorted(chunks)])
        return gather(parts, old.combine)

    def _records(self, role: str, rank: int) -> list[in_flight.InFlight]:
        name = disk.edges_file(role, rank, self._manifest.world_sizes[role])
        if name not in self._manifest.files:
            return []
        return read_edges(self._folder, name, f"{role}/{rank}", self._graph, trusted=self._trusted)
