"""The values that were in flight when a snapshot was persisted, for consumers of a job that goes on from it.

The consumer combines its value from the records of the old producers. If its role has another world size now, it
combines the values of the old consumers, and cuts them again by its partition, as if those had sent them to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rolemesh.errors import RolemeshError
from rolemesh.graph.logical import Edge, LogicalGraph
from rolemesh.graph.routes import Collate, Combine, Route, RouteError, Selection, route
from rolemesh_checkpoint.log_kinds import RecordKind
from rolemesh_durable.protocol.delivery import delivery_of
from rolemesh_durable.protocol.delivery.exact import OriginValues
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.protocol.rank.records import InFlight

__all__ = ["Assembly", "OriginError", "StoredValues", "restore_inputs"]


class OriginError(RolemeshError):
    """A persisted snapshot lacks a value that was in flight, or the value does not fit the ranks of now."""

    exit_code = 1


def restore_inputs(ports: Ports[Any], edges: Collection[int], step: int, origin: Callable[[], OriginValues]) -> None:
    """Give the in-ports of `edges` the values that were in flight when the snapshot of `step` was persisted.

    ``origin()`` is that snapshot. A rank that needs no value up to `step` does not read it: it may be gone.
    """
    chosen = [port for port in ports.ins if port.edge.id in edges]
    found: dict[int, dict[int, Any]] = {}
    if early := [port for port in chosen if port.first <= step]:
        there = origin()
        found = {port.edge.id: port.given_by(there, step) for port in early}
    for port in chosen:
        values = found.get(port.edge.id, {})
        port.give({made: value for made, value in values.items() if made >= port.first}, step)


Records: TypeAlias = Callable[[str, int], Sequence[InFlight]]
"""Returns all records of a producer, given as role and rank."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """How values are cut and combined."""

    gather: Callable[[Sequence[Sequence[Any]], Combine], Any]
    """The value of the chunks of each source."""
    select: Callable[[Any, Selection], Any]
    """The part of a value."""
    combine: Callable[[Sequence[Any], Combine], Any]
    """The value of one part from each source."""


class StoredValues:
    """A persisted snapshot, as rank `rank` of `size` ranks of a consuming role sees it."""

    def __init__(
        self,
        graph: LogicalGraph,
        before: Mapping[str, int],
        records: Records,
        assembly: Assembly,
        rank: int,
        size: int,
        *,
        where: str,
    ) -> None:
        """`before` are the world sizes of the snapshot. `where` names it in errors."""
        self._graph, self._before, self._records, self._assembly = graph, before, records, assembly
        self._rank, self._size, self._where = rank, size, where

    def values(self, edge: Edge) -> dict[int, Any]:
        """Return the rank's complete values on `edge`, by the step of their producer.

        Raises `OriginError`, and the errors of reading the records.
        """
        source, producers, consumers = self._ends(edge)
        steps = sorted({r.step for p in range(producers) for r in self._records(source, p) if r.edge == edge.id})
        if not steps:
            return {}
        old = route(edge.src_partition, producers, edge.dst_partition, consumers)
        if consumers == self._size:
            return {step: self._value(edge, step, old, self._rank) for step in steps}
        again = self._route_again(edge, consumers)
        return {step: self._cut_again(edge, step, old, again) for step in steps}

    def items(self, edge: Edge) -> dict[int, list[Any]]:
        """As `values`, for an edge from which the rank takes items: returns the items of each step."""
        source, producers, consumers = self._ends(edge)
        if consumers != self._size:
            raise OriginError(
                f"{edge.param!r} was on its way to {consumers} ranks, each of which had taken some items",
                where=self._where,
                remedy=f"resume with world_size {consumers} of role {self._graph.ops[edge.dst].role}",
            )
        found: dict[int, list[Any]] = {}
        for producer in range(producers):
            for record in self._records(source, producer):
                if record.edge == edge.id and self._rank in record.consumers and record.kind == RecordKind.CHUNK:
                    found.setdefault(record.step, []).append(record.value())
        return found

    def decision(self, edge: Edge, scope: str, step: int) -> bytes | None:
        """The rank's own decision at `step` about `scope`, at the consumer's end of `edge`; None: there is none."""
        own = self._records(self._graph.ops[edge.dst].role, self._rank)
        return next((r.body for r in own if r.scope == scope and r.step == step), None)

    def _ends(self, edge: Edge) -> tuple[str, int, int]:
        """The role of the producers, and the numbers of producers and consumers that there were."""
        source, target = self._graph.ops[edge.src].role, self._graph.ops[edge.dst].role
        return source, self._before[source], self._before[target]

    def _route_again(self, edge: Edge, consumers: int) -> Route:
        """The route from the old consumers to the present ones."""
        held = delivery_of(edge).held
        try:
            return route(held, consumers, held, self._size)
        except RouteError as error:
            raise OriginError(
                f"{edge.param!r} was on its way to {consumers} ranks, and cannot be cut for {self._size}: {error.why}",
                where=self._where,
                remedy=f"resume with world_size {consumers} of role {self._graph.ops[edge.dst].role}",
            ) from error

    def _cut_again(self, edge: Edge, step: int, old: Route, again: Route) -> Any:
        parts = []
        for before in again.sources(self._rank):
            selection = again.sends_to(before, self._rank)
            assert selection is not None
            parts.append(self._assembly.select(self._value(edge, step, old, before), selection))
        return self._assembly.combine(parts, again.combine)

    def _value(self, edge: Edge, step: int, old: Route, consumer: int) -> Any:
        """Return the value that the old rank `consumer` would have received."""
        role, parts = self._graph.ops[edge.src].role, []
        for producer in old.sources(consumer):
            chunks = {
                r.chunk: r
                for r in self._records(role, producer)
                if r.edge == edge.id and r.step == step and consumer in r.consumers and r.kind == RecordKind.CHUNK
            }
            if not chunks and not isinstance(old.combine, Collate):
                raise OriginError(
                    f"the value of {edge.param!r} that {role}/{producer} made at step {step} is missing",
                    where=self._where,
                    remedy="'rolemesh checkpoint list' shows other steps",
                )
            parts.append([chunks[number].value() for number in sorted(chunks)])
        return self._assembly.gather(parts, old.combine)
